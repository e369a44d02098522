"""Measure the time of each call of a pipeline from outside, and sum the times."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Literal

import diffusers
import torch

from imagekiln.steps.generate.diffusion.compile import CompileClock
from imagekiln.steps.generate.diffusion.device import (
    device_error,
    device_label,
    record_event,
    report_memory,
)
from imagekiln.steps.generate.diffusion.patches import AnyFunction, Untyped, replaced_method
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.metrics import DEVICE_BUSY_SECONDS, observe_stages

Moment = float | torch.cuda.Event
DEVICE_STAGES = ("compile", "text", "denoise", "decode", "copy")
SpanName = Literal["text", "decode", "copy", "whole"]


class Spans:
    """The timed spans of one batch. On CUDA, reading them waits until the batch is done."""

    def __init__(self, device: torch.device, clock: CompileClock) -> None:
        """Start without spans. The clock's compile time is subtracted from them."""
        self._device = device
        self._clock = clock
        self._spans: list[tuple[SpanName, Moment, Moment, float]] = []

    @contextmanager
    def span(self, name: SpanName) -> Iterator[None]:
        """Time the block. The span `whole` includes `text` and `decode`; the rest is denoising."""
        begin = current_moment(self._device)
        compiled_before = self._clock.seconds
        yield
        compile_seconds = self._clock.seconds - compiled_before
        self._spans.append((name, begin, current_moment(self._device), compile_seconds))

    def times(self) -> StageSeconds:
        """Sum the seconds of all spans. On CUDA, waits for the device."""
        sums: dict[SpanName, float] = defaultdict(float)
        compiled = 0.0
        for name, begin, end, compile_seconds in self._spans:
            sums[name] += max(0.0, elapsed_seconds(begin, end) - compile_seconds)
            if name == "whole":
                compiled += compile_seconds
        return StageSeconds(
            compile=compiled,
            text=sums["text"],
            denoise=max(0.0, sums["whole"] - sums["text"] - sums["decode"]),
            decode=sums["decode"],
            copy=sums["copy"],
            busy=sums["whole"],
        )


def current_moment(device: torch.device) -> Moment:
    """Return an event after all queued work on CUDA, else the current time."""
    if device.type != "cuda":
        return time.perf_counter()
    return record_event(timed=True)


def elapsed_seconds(begin: Moment, end: Moment) -> float:
    """Return the seconds between two moments. On CUDA, waits; raises TryAgain if it failed."""
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]  # both are of one kind
    try:
        end.synchronize()  # pixels copied on another stream may arrive before this event
        return float(begin.elapsed_time(end)) / 1000
    except Exception as error:  # the next batch may have failed meanwhile
        raise device_error(error) from error


class PipelineProfiler:
    """Measures the times of a pipeline's calls. All but `profile_call` are thread-safe."""

    def __init__(self, device: torch.device, clock: CompileClock) -> None:
        """Take the pipeline's device, and the clock whose compile time is not counted."""
        self._device = device
        self._device_label = device_label(device)
        self._clock = clock
        self._times = StageSeconds()
        self._lock = Lock()

    @contextmanager
    def profile_call(self, pipe: diffusers.DiffusionPipeline) -> Iterator[Spans]:
        """Time the block, which calls the pipeline or a sibling."""
        spans = Spans(self._device, self._clock)
        vae: Untyped = getattr(pipe, "vae", None)
        with ExitStack() as stack, spans.span("whole"):
            if hasattr(vae, "decode"):
                timed = _with_span(vae.decode, "decode", spans)
                stack.enter_context(replaced_method(vae, "decode", timed))
            yield spans

    def add_call(self, spans: Spans) -> None:
        """Add the times of a finished call."""
        times = spans.times()
        self.add(times)
        DEVICE_BUSY_SECONDS.add(times.busy, device=self._device_label)
        report_memory(self._device, self._device_label)

    def add(self, times: StageSeconds) -> None:
        """Add times, such as those of prefetched prompts."""
        with self._lock:
            self._times += times
        observe_stages(**{stage: getattr(times, stage) for stage in DEVICE_STAGES})

    def pop_times(self) -> StageSeconds:
        """Return the times that were added since the previous call."""
        with self._lock:
            times = self._times
            self._times = StageSeconds()
        return times


def _with_span(function: AnyFunction, name: SpanName, spans: Spans) -> Callable[..., object]:
    def timed(*args: object, **kwargs: object) -> object:
        with spans.span(name):
            return function(*args, **kwargs)

    return timed
