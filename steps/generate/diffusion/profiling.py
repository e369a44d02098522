"""Time each call of a pipeline from outside, and sum the times."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
from imagekiln.steps.generate.diffusion.patches import AnyFunction, replaced_method
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.metrics import DEVICE_BUSY_SECONDS, observe_stages

Moment = float | torch.cuda.Event
DEVICE_STAGES = ("compile", "text", "denoise", "decode", "copy")
SpanName = Literal["text", "decode", "copy", "whole"]


@dataclass(frozen=True, slots=True)
class _Span:
    """Work of the device between two moments, of which `compile_seconds` went into compiling."""

    name: SpanName
    begin: Moment
    end: Moment
    compile_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds without compiling. On CUDA, waits for the device."""
        return max(0.0, elapsed_seconds(self.begin, self.end) - self.compile_seconds)


class Spans:
    """The spans of one batch. On CUDA they are known once the batch is done: reading them waits."""

    def __init__(self, device: torch.device, clock: CompileClock | None = None) -> None:
        """Start without any. What the clock counts as compiling is subtracted."""
        self._device = device
        self._clock = clock or CompileClock()
        self._spans: list[_Span] = []

    @contextmanager
    def span(self, name: SpanName) -> Iterator[None]:
        """Time the block. `text` and `decode` lie within the `whole`, whose rest is denoising."""
        begin = current_moment(self._device)
        compile_began = self._clock.seconds
        yield
        end = current_moment(self._device)
        compile_seconds = self._clock.seconds - compile_began
        span = _Span(name, begin, end, compile_seconds)
        self._spans.append(span)

    def times(self) -> StageSeconds:
        """The seconds of all spans."""
        sums: dict[SpanName, float] = defaultdict(float)
        for span in self._spans:
            sums[span.name] += span.seconds
        whole = sums["whole"]
        return StageSeconds(
            compile=sum(span.compile_seconds for span in self._spans if span.name == "whole"),
            text=sums["text"],
            denoise=max(0.0, whole - sums["text"] - sums["decode"]),
            decode=sums["decode"],
            copy=sums["copy"],
            busy=whole,
        )


def current_moment(device: torch.device) -> Moment:
    """The moment when all queued work is done on CUDA, else now."""
    if device.type != "cuda":
        return time.perf_counter()
    return record_event(timed=True)


def elapsed_seconds(begin: Moment, end: Moment) -> float:
    """Seconds between two moments. On CUDA, waits; raises TryAgain if the device failed."""
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]  # both are of one kind
    try:
        end.synchronize()  # pixels copied on another stream may arrive before this event
        return float(begin.elapsed_time(end)) / 1000
    except Exception as error:  # the next batch may have failed meanwhile
        raise device_error(error) from error


class PipelineProfiler:
    """Time the calls of a pipeline. All but `profile_call` may run in any thread."""

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, *, texts: bool, clock: CompileClock
    ) -> None:
        """Take the pipeline, whose own call encodes `texts` or not. Compiling is not drawing."""
        self._device: torch.device = pipe.device
        self._device_label = device_label(pipe.device)
        self._texts = texts
        self._clock = clock
        self._times = StageSeconds()
        self._lock = Lock()

    @contextmanager
    def profile_call(self, pipe: diffusers.DiffusionPipeline) -> Iterator[Spans]:
        """Time the block, in which the pipeline or a sibling draws."""
        spans = Spans(self._device, self._clock)
        with ExitStack() as stack, spans.span("whole"):
            for owner, method, name in self._timed_methods(pipe):
                timed = _with_span(getattr(owner, method), name, spans)
                stack.enter_context(replaced_method(owner, method, timed))
            yield spans

    def _timed_methods(
        self, pipe: diffusers.DiffusionPipeline
    ) -> Iterator[tuple[object, str, SpanName]]:
        vae = getattr(pipe, "vae", None)
        if hasattr(vae, "decode"):
            yield vae, "decode", "decode"
        if self._texts and hasattr(pipe, "encode_prompt"):
            yield pipe, "encode_prompt", "text"

    def add_call(self, spans: Spans) -> None:
        """Add a call that is done."""
        times = spans.times()
        self._add(times)
        DEVICE_BUSY_SECONDS.add(times.busy, device=self._device_label)
        report_memory(self._device, self._device_label)

    def add_text(self, seconds: float) -> None:
        """Add the time of a text that was encoded beside the batches."""
        self._add(StageSeconds(text=seconds))

    def add_safety(self, seconds: float) -> None:
        """Add the time of a batch that was checked beside the next."""
        self._add(StageSeconds(safety=seconds))

    def pop_times(self) -> StageSeconds:
        """Return what was added since the previous call."""
        with self._lock:
            times = self._times
            self._times = StageSeconds()
        return times

    def _add(self, times: StageSeconds) -> None:
        with self._lock:
            self._times += times
        observe_stages(**{stage: getattr(times, stage) for stage in DEVICE_STAGES})


def _with_span(function: AnyFunction, name: SpanName, spans: Spans) -> Callable[..., object]:
    def timed(*args: object, **kwargs: object) -> object:
        with spans.span(name):
            return function(*args, **kwargs)

    return timed
