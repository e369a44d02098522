"""When the device finished each batch, and the steady rate that follows from it.

The first batches pay for compiling, for libraries that start and for choosing kernels; the last
one waits for encoding and writing. In between, contenders compare whatever their one-time costs.
"""

import time
from dataclasses import dataclass
from typing import TypeAlias

import torch

from imagekiln.steps.generate.diffusion.device import record_event

Moment: TypeAlias = float | torch.cuda.Event
WARM_UP_BATCHES = 3


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The wall time at which the device had finished a batch, and the images in it."""

    seconds: float
    images: int


@dataclass(frozen=True, slots=True)
class Phases:
    """The seconds before the steady state and after it, and the images a second in between."""

    head: float
    steady_rate: float
    tail: float


class Timeline:
    """Marks the ends of batches as they are queued, without waiting for the device."""

    def __init__(self, earlier: float = 0.0) -> None:
        """Start the clock, at the seconds that count as passed."""
        self._started = time.perf_counter() - earlier
        self._marks: list[tuple[Moment, int]] = []

    def mark(self, images: int) -> None:
        """A batch of this many images is done once the work queued so far is done."""
        moment = record_event(timed=True) if torch.cuda.is_available() else time.perf_counter()
        self._marks.append((moment, images))

    def stop(self) -> tuple[float, list[BatchEnd]]:
        """Wait for the device; the seconds that have passed, and the ends of all batches."""
        if not torch.cuda.is_available():
            passed = time.perf_counter() - self._started
            return passed, [_wall_end(mark, self._started) for mark in self._marks]
        last = record_event(timed=True)
        last.synchronize()
        passed = time.perf_counter() - self._started
        return passed, [_device_end(mark, last, passed) for mark in self._marks]


def _wall_end(mark: tuple[Moment, int], started: float) -> BatchEnd:
    moment, images = mark
    return BatchEnd(float(moment) - started, images)  # type: ignore[arg-type]  # no event on a CPU


def _device_end(mark: tuple[Moment, int], last: torch.cuda.Event, passed: float) -> BatchEnd:
    moment, images = mark
    milliseconds = float(moment.elapsed_time(last))  # type: ignore[union-attr]  # an event on CUDA
    return BatchEnd(passed - milliseconds / 1000, images)


def find_phases(whole: float, ends: list[BatchEnd]) -> Phases:
    """The steady state: from the end of batch 3 to that of the last but one.

    Of few batches, it starts earlier and ends with the last one. A single batch has none, and its
    rate is that of the whole.
    """
    if len(ends) < 2:
        images = sum(end.images for end in ends)
        return Phases(0.0, images / whole, 0.0)

    warm_up = min(WARM_UP_BATCHES, len(ends) // 2)
    warm_up_end = ends[warm_up - 1]
    steady = ends[warm_up:-1] or ends[warm_up:]
    steady_end = steady[-1]

    images = sum(end.images for end in steady)
    seconds = steady_end.seconds - warm_up_end.seconds
    tail = whole - steady_end.seconds
    return Phases(warm_up_end.seconds, images / seconds, tail)
