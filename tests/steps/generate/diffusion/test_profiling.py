"""What drawing takes, seen from outside."""

import time
from functools import wraps
from typing import cast

import pytest
import torch

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.compile import CompileClock, CompiledPipeline
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.profiling import (
    Spans,
    elapsed_seconds,
)
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.runs.stats import StageSeconds
from tests import families, models, plain
from tests.runs import image_row

ROWS = [image_row(f"number {place}", place) for place in range(4)]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", ["sd", "flux", "z-image", "bria"])
def test_text_denoising_decoding_and_copying_are_told_apart(kind: str) -> None:
    denoiser = Denoiser(plain.pipe(kind) if kind in plain.MAKE else families.pipe(kind))
    side = families.SIDES.get(kind, models.SIDE)
    denoiser.draw([image_row(width=side, height=side)], 1, lambda: None)
    taken = denoiser.pop_times()
    assert min(taken.text, taken.denoise, taken.decode, taken.copy) > 0
    assert taken.busy == pytest.approx(taken.text + taken.denoise + taken.decode)
    assert denoiser.pop_times().busy == 0, "what was told is not told again"


def test_a_pipeline_is_left_as_it_was() -> None:
    pipe = plain.pipe("bria")  # which encodes texts in its own call
    parts = (pipe, pipe.transformer, pipe.vae)
    denoiser = Denoiser(pipe, SpeedSettings(vae="whole"))
    before = [dict(vars(part)) for part in parts]
    denoiser.draw(ROWS, 4, lambda: None)
    pipe.transformer.register_forward_pre_hook(_full)
    with pytest.raises(torch.OutOfMemoryError):
        denoiser.draw(ROWS, 4, lambda: None)
    methods = ("encode_prompt", "decode")
    for part, attributes in zip(parts, before, strict=True):
        for name in methods:
            assert vars(part).get(name) is attributes.get(name)


def test_batches_that_ran_out_of_memory_count_nothing() -> None:
    pipe = models.pipe("sd")
    denoiser = Denoiser(pipe)
    pipe.unet.register_forward_pre_hook(_full)
    with pytest.raises(torch.OutOfMemoryError):
        denoiser.draw(ROWS, 4, lambda: None)
    assert denoiser.pop_times().busy == 0


def _full(*_: object) -> None:
    raise torch.OutOfMemoryError


CPU = torch.device("cpu")


class FakeClock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(time, "perf_counter", fake)
    return fake


def test_the_whole_less_text_and_decoding_is_denoising(clock: FakeClock) -> None:
    spans = Spans(CPU)
    with spans.span("whole"):
        clock.advance(3.0)
        with spans.span("text"):
            clock.advance(1.0)
        for _ in range(2):
            with spans.span("decode"):
                clock.advance(2.0)
    with spans.span("copy"):
        clock.advance(0.5)
    assert spans.times() == StageSeconds(text=1.0, denoise=3.0, decode=4.0, copy=0.5, busy=8.0)


def test_compiling_is_left_out_of_what_was_done_meanwhile(clock: FakeClock) -> None:
    compiling = CompileClock()
    spans = Spans(CPU, compiling)
    with spans.span("whole"), spans.span("decode"):
        clock.advance(5.0)
        compiling.seconds += 4.0
    assert spans.times() == StageSeconds(compile=4.0, decode=1.0, busy=1.0)


def test_a_text_that_is_encoded_to_learn_its_length_counts_as_text(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledPipeline, "mode", "regional")  # whose code depends on the length
    pipe = families.pipe("qwen-image")
    encode = pipe.encode_prompt

    @wraps(encode)
    def take_a_second(prompt: list[str] | None = None, **options: object) -> object:
        if prompt is not None:
            clock.advance(1.0)
        return encode(prompt, **options)

    pipe.encode_prompt = take_a_second
    denoiser = Denoiser(pipe)
    denoiser.draw([image_row("a red circle", guidance=1.0)], 1, lambda: None)
    assert denoiser.pop_times().text == 1.0


def test_moments_of_the_device_are_waited_for_before_the_time_between_them_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Event:
        """One of CUDA, which the device has not come to yet."""

        over = False

        def synchronize(self) -> None:
            self.over = True

        def elapsed_time(self, until: "Event") -> float:
            if not until.over:
                raise ValueError("Both events must be completed before calculating elapsed time.")
            return 2000.0

    monkeypatch.setattr(
        "imagekiln.steps.generate.diffusion.profiling.record_event",
        lambda *, timed: Event() if timed else None,
    )
    spans = Spans(torch.device("cuda"))
    with spans.span("whole"):
        pass
    assert spans.times().busy == 2.0


def test_device_that_fails_before_times_are_read_is_to_be_tried_again() -> None:
    class Event:
        """One that came, on a device that the next batch has lost since."""

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, _: "Event") -> float:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    event = cast("torch.cuda.Event", Event())
    with pytest.raises(TryAgain, match="the device failed"):
        elapsed_seconds(event, event)
