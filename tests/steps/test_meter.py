"""What drawing takes, seen from outside."""

import pytest
import torch

from imagekiln.steps import meter as meters
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.refine import Refiner
from imagekiln.steps.speed import Speed
from tests import families, models, refiners
from tests.runs import image_row

ROWS = [image_row(f"number {place}", place) for place in range(4)]


@pytest.mark.parametrize("kind", ["sd", "flux", "z-image", "hunyuan-dit", "kandinsky3"])
def test_text_denoising_decoding_and_copying_are_told_apart(kind: str) -> None:
    denoiser = Denoiser(families.pipe(kind))
    side = families.SIDES.get(kind, models.SIDE)
    denoiser.draw([image_row(width=side, height=side)], 1, lambda: None)
    taken = denoiser.taken()
    assert min(taken.text, taken.denoise, taken.decode, taken.copy) > 0
    assert taken.busy == pytest.approx(taken.text + taken.denoise + taken.decode)
    assert denoiser.taken().busy == 0, "what was told is not told again"


def test_slow_parts_are_told_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = models.pipe("sd")
    decode = pipe.vae.decode
    clock = [0.0]
    monkeypatch.setattr("imagekiln.steps.timing.time.perf_counter", lambda: clock[0])

    def slow(*places: object, **names: object) -> object:
        clock[0] += 5.0
        return decode(*places, **names)

    pipe.vae.decode = slow
    pipe.unet.register_forward_pre_hook(lambda *_: clock.__setitem__(0, clock[0] + 1.0))
    pipe.text_encoder.register_forward_pre_hook(lambda *_: clock.__setitem__(0, clock[0] + 0.25))
    denoiser = Denoiser(pipe)
    denoiser.draw(ROWS, 4, lambda: None)
    taken = denoiser.taken()
    assert (taken.text, taken.denoise, taken.decode, taken.busy) == (1.5, 2.0, 5.0, 8.5)


def test_a_pipeline_is_left_as_it_was() -> None:
    pipe = families.pipe("hunyuan-dit")
    parts = (pipe, pipe.transformer, pipe.vae)
    denoiser = Denoiser(pipe, Speed(vae="whole"))  # auto has a `decode` of its own
    denoiser.draw(ROWS, 4, lambda: None)
    pipe.transformer.register_forward_pre_hook(_full)
    with pytest.raises(torch.OutOfMemoryError):
        denoiser.draw(ROWS, 4, lambda: None)
    assert not {"encode_prompt", "_compiled_call_impl", "decode"} & {name for part in parts for name in vars(part)}


@pytest.mark.parametrize("compiled", ["plain", "in place", "wrapped"])
def test_operations_are_those_of_the_images_that_were_asked_for(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "worth_it", lambda _: True)
    pipe = models.pipe("sd")
    if compiled == "in place":
        pipe.unet.compile(backend="eager")
    if compiled == "wrapped":
        pipe.unet = torch.compile(pipe.unet, backend="eager")
    denoiser = Denoiser(pipe)
    denoiser.draw(ROWS, 4, lambda: None)
    whole = denoiser.taken().flops
    denoiser.draw(ROWS[:3], 4, lambda: None)
    part = denoiser.taken().flops
    assert whole is not None
    assert part is not None
    assert whole > 1e6
    assert part == pytest.approx(0.75 * whole)


def _operations(denoiser: Denoiser, steps: int) -> float:
    denoiser.draw([image_row(steps=steps)], 1, lambda: None)
    found = denoiser.taken().flops
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["flux", "qwen-image"])
def test_steps_that_are_foretold_are_no_operations(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "worth_it", lambda _: True)
    every = Denoiser(families.pipe(kind))
    six, seven = (_operations(every, steps) for steps in (6, 7))
    # Of seven steps, the first three and the fifth are computed.
    foretold = _operations(Denoiser(families.pipe(kind), Speed(reuse=3)), 7)
    assert foretold == pytest.approx(seven - 3 * (seven - six))


def test_steps_without_guidance_are_half_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "worth_it", lambda _: True)
    two, four = (_operations(Denoiser(models.pipe("sd")), steps) for steps in (2, 4))
    ended = _operations(Denoiser(models.pipe("sd"), Speed(guidance_until=0.5)), 4)
    assert ended == pytest.approx((two + four) / 2)


@pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)
def test_a_refiner_s_steps_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "worth_it", lambda _: True)
    base, refiner = models.pipe("sdxl"), Refiner(refiners.pipe(own_vae=True), 0.5)
    without = Denoiser(base, None, None, refiner)
    both = _operations(without, steps=4)
    monkeypatch.setattr("imagekiln.steps.meter.DENOISING", ("denoiser",))
    assert _operations(without, steps=4) < 0.9 * both


def test_a_cpu_s_operations_are_not_counted() -> None:
    denoiser = Denoiser(models.pipe("sd"))
    denoiser.draw(ROWS, 4, lambda: None)
    assert denoiser.taken().flops is None


def test_batches_that_ran_out_of_memory_count_nothing() -> None:
    denoiser = Denoiser(models.pipe("sd"))
    denoiser._pipe.unet.register_forward_pre_hook(_full)
    with pytest.raises(torch.OutOfMemoryError):
        denoiser.draw(ROWS, 4, lambda: None)
    assert denoiser.taken().busy == 0


def _full(*_: object) -> None:
    raise torch.OutOfMemoryError
