"""What drawing takes: each call of a pipeline is watched from outside, and what is seen is added up."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import diffusers
import torch

from imagekiln.steps.generate.diffusion.compile import CompileClock
from imagekiln.steps.generate.diffusion.device import record_event

Moment = float | torch.cuda.Event
SpanName = Literal["text", "decode", "copy", "whole"]
SPAN_NAMES: tuple[SpanName, ...] = ("text", "decode", "copy", "whole")


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Seconds of the device. `busy` is what it computed for; texts encoded beside that add to `text` alone."""

    text: float = 0.0
    denoise: float = 0.0
    decode: float = 0.0
    copy: float = 0.0
    busy: float = 0.0

    def __add__(self, other: "DeviceTimes") -> "DeviceTimes":
        """Both together."""
        return DeviceTimes(
            self.text + other.text,
            self.denoise + other.denoise,
            self.decode + other.decode,
            self.copy + other.copy,
            self.busy + other.busy,
        )


class Spans:
    """The spans of one batch. On CUDA they are known only once the batch is over: to read them waits for that."""

    def __init__(self, device: torch.device, clock: CompileClock | None = None) -> None:
        """Begin without any. What a clock counts as compiling is left out of them."""
        self._device, self._clock = device, clock or CompileClock()
        self._spans: list[tuple[SpanName, Moment, Moment, float]] = []

    @contextmanager
    def span(self, name: SpanName) -> Iterator[None]:
        """What the block has the device do. `text` and `decode` lie in the `whole`; the rest of that is denoising."""
        since, compiled = _record_moment(self._device), self._clock.seconds
        yield
        self._spans.append(
            (name, since, _record_moment(self._device), self._clock.seconds - compiled)
        )

    def times(self) -> DeviceTimes:
        """The seconds of all spans."""
        text, decode, copy, whole = (self._seconds(name) for name in SPAN_NAMES)
        return DeviceTimes(text, max(0.0, whole - text - decode), decode, copy, whole)

    def _seconds(self, name: SpanName) -> float:
        spent = (
            _elapsed_seconds(since, until) - compiled
            for each, since, until, compiled in self._spans
            if each == name
        )
        return sum(max(0.0, each) for each in spent)


def _record_moment(device: torch.device) -> Moment:
    """On CUDA the moment when the work queued so far on the current stream is done, else this one."""
    if device.type != "cuda":
        return time.perf_counter()
    return record_event(timed=True)


def _elapsed_seconds(since: Moment, until: Moment) -> float:
    if isinstance(since, float) or isinstance(until, float):
        return float(until) - float(since)  # type: ignore[arg-type]  # moments of one device are of one kind
    until.synchronize()  # pixels that left the device in another way may be there before it is
    return float(since.elapsed_time(until)) / 1000


AnyFunction = Callable[..., object]


class PipelineProfiler:
    """Watches a pipeline, and adds up what its calls took. `add`, `text` and `taken` may be called in any thread."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        *,
        texts: bool,
        clock: CompileClock,
    ) -> None:
        """Find the decoder under its usual name. `texts`: the pipeline's own call encodes its texts.

        What the clock counts as compiling is not counted as drawing.
        """
        self._pipe, self._texts = pipe, texts and hasattr(pipe, "encode_prompt")
        self._vae = getattr(pipe, "vae", None)
        self._taken, self._clock = DeviceTimes(), clock
        self._lock = Lock()

    @contextmanager
    def profile_call(self) -> Iterator[Spans]:
        """Watch what the pipeline does in the block.

        Its parts are replaced for that long, and not hooked: a hook would become a part of what is compiled.
        """
        spans = Spans(self._pipe.device, self._clock)
        with ExitStack() as stack, spans.span("whole"):
            for owner, name, function in self._replacements(spans):
                stack.enter_context(_patch_attribute(owner, name, function))
            yield spans

    def add_call(self, spans: Spans) -> None:
        """Add a call that is over."""
        self._add_times(spans.times())

    def add_text(self, seconds: float) -> None:
        """Add the time of a text that was encoded beside the batches."""
        self._add_times(DeviceTimes(text=seconds))

    def pop_times(self) -> DeviceTimes:
        """What was added since this was last asked."""
        with self._lock:
            found, self._taken = self._taken, DeviceTimes()
        return found

    def _add_times(self, more: DeviceTimes) -> None:
        with self._lock:
            self._taken += more

    def _replacements(self, spans: Spans) -> Iterator[tuple[object, str, AnyFunction]]:
        """What to replace, and by what: no more than tells something."""
        if (decode := getattr(self._vae, "decode", None)) is not None:
            yield self._vae, "decode", _with_span(decode, "decode", spans)
        if self._texts:
            yield self._pipe, "encode_prompt", _with_span(self._pipe.encode_prompt, "text", spans)


def _with_span(function: AnyFunction, span: SpanName, spans: Spans) -> AnyFunction:
    def called(*places: object, **names: object) -> object:
        with spans.span(span):
            return function(*places, **names)

    return called


@contextmanager
def _patch_attribute(owner: object, name: str, function: AnyFunction) -> Iterator[None]:
    """Put a function in the place of an object's own. Past `__setattr__`, which wrappers of modules hand on."""
    own = vars(owner)
    before = {name: own[name]} if name in own else {}
    own[name] = function
    try:
        yield
    finally:
        del own[name]
        own.update(before)
