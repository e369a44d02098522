"""What drawing takes, seen from outside."""

import pytest
import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.job.speed import SpeedSettings
from tests import families, models, plain
from tests.runs import image_row

ROWS = [image_row(f"number {place}", place) for place in range(4)]


@pytest.mark.parametrize("kind", ["sd", "flux", "z-image", "bria"])
def test_text_denoising_decoding_and_copying_are_told_apart(kind: str) -> None:
    denoiser = Denoiser(plain.pipe(kind) if kind in plain.MAKE else families.pipe(kind))
    side = families.SIDES.get(kind, models.SIDE)
    denoiser.draw([image_row(width=side, height=side)], 1, lambda: None)
    taken = denoiser.pop_times()
    assert min(taken.text, taken.denoise, taken.decode, taken.copy) > 0
    assert taken.busy == pytest.approx(taken.text + taken.denoise + taken.decode)
    assert denoiser.pop_times().busy == 0, "what was told is not told again"


def test_slow_parts_are_told_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = models.pipe("sd")
    decode = pipe.vae.decode
    clock = [0.0]
    monkeypatch.setattr(
        "imagekiln.steps.generate.diffusion.profiling.time.perf_counter", lambda: clock[0]
    )

    def slow(*places: object, **names: object) -> object:
        clock[0] += 5.0
        return decode(*places, **names)

    pipe.vae.decode = slow
    pipe.unet.register_forward_pre_hook(lambda *_: clock.__setitem__(0, clock[0] + 1.0))
    pipe.text_encoder.register_forward_pre_hook(lambda *_: clock.__setitem__(0, clock[0] + 0.25))
    denoiser = Denoiser(pipe)
    denoiser.draw(ROWS, 4, lambda: None)
    taken = denoiser.pop_times()
    assert (taken.text, taken.denoise, taken.decode, taken.busy) == (1.5, 2.0, 5.0, 8.5)


def test_a_pipeline_is_left_as_it_was() -> None:
    pipe = plain.pipe("bria")  # which encodes texts in its own call
    parts = (pipe, pipe.transformer, pipe.vae)
    denoiser = Denoiser(pipe, SpeedSettings(vae="whole"))  # auto has a `decode` of its own
    denoiser.draw(ROWS, 4, lambda: None)
    pipe.transformer.register_forward_pre_hook(_full)
    with pytest.raises(torch.OutOfMemoryError):
        denoiser.draw(ROWS, 4, lambda: None)
    assert not {"encode_prompt", "decode"} & {name for part in parts for name in vars(part)}


def test_batches_that_ran_out_of_memory_count_nothing() -> None:
    denoiser = Denoiser(models.pipe("sd"))
    denoiser._pipe.unet.register_forward_pre_hook(_full)
    with pytest.raises(torch.OutOfMemoryError):
        denoiser.draw(ROWS, 4, lambda: None)
    assert denoiser.pop_times().busy == 0


def _full(*_: object) -> None:
    raise torch.OutOfMemoryError
