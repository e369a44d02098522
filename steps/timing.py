"""What a batch's time goes into: moments on the device's own time line, and the seconds between them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from imagekiln.steps.compile_clock import CompileClock
from imagekiln.steps.device import record_event

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
        self._spans.append((name, since, _record_moment(self._device), self._clock.seconds - compiled))

    def times(self) -> DeviceTimes:
        """The seconds of all spans."""
        text, decode, copy, whole = (self._seconds(name) for name in SPAN_NAMES)
        return DeviceTimes(text, max(0.0, whole - text - decode), decode, copy, whole)

    def _seconds(self, name: SpanName) -> float:
        spent = (
            _elapsed_seconds(since, until) - compiled for each, since, until, compiled in self._spans if each == name
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
