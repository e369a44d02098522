"""When the device finished each batch, and the steady rate that follows from it.

The first batches pay for compiling, for libraries that start and for choosing kernels; the last
one waits for encoding and writing. In between, contenders compare whatever their one-time costs.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from imagekiln.steps.generate.diffusion.device import record_event

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


class Clock(Protocol):
    """Marks moments, and says afterwards how long ago they were."""

    def mark(self) -> None:
        """Mark the moment at which the work queued so far is done."""

    def ages(self) -> list[float]:
        """Wait for the device; the seconds since each moment, in their order."""


class HostClock:
    """A clock for work that is done where it is called."""

    def __init__(self) -> None:
        """Mark nothing yet."""
        self._moments: list[float] = []

    def mark(self) -> None:
        """Mark this moment."""
        moment = time.perf_counter()
        self._moments.append(moment)

    def ages(self) -> list[float]:
        """The seconds since each moment."""
        now = time.perf_counter()
        return [now - moment for moment in self._moments]


class DeviceClock:
    """The clock of a CUDA device, which does its work later."""

    def __init__(self) -> None:
        """Mark nothing yet."""
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Mark the moment at which the work queued so far is done."""
        event = record_event(timed=True)
        self._events.append(event)

    def ages(self) -> list[float]:
        """Wait for the device; the seconds since each moment."""
        last = record_event(timed=True)
        last.synchronize()
        milliseconds = [event.elapsed_time(last) for event in self._events]
        return [age / 1000 for age in milliseconds]


class Timeline:
    """Marks the ends of batches as they are queued, without waiting for the device."""

    def __init__(self, earlier: float = 0.0) -> None:
        """Start the clock, at the seconds that count as passed."""
        self._started = time.perf_counter() - earlier
        self._images: list[int] = []
        self._clock: Clock = HostClock()
        if torch.cuda.is_available():
            self._clock = DeviceClock()

    def mark(self, images: int) -> None:
        """A batch of this many images is done once the work queued so far is done."""
        self._clock.mark()
        self._images.append(images)

    def stop(self) -> tuple[float, list[BatchEnd]]:
        """Wait for the device; the seconds that have passed, and the ends of all batches."""
        ages = self._clock.ages()
        passed = time.perf_counter() - self._started
        ends: list[BatchEnd] = []
        for age, images in zip(ages, self._images, strict=True):
            seconds = passed - age
            ends.append(BatchEnd(seconds, images))
        return passed, ends


def find_phases(whole: float, ends: Sequence[BatchEnd]) -> Phases:
    """The steady state: from the end of batch 3 to that of the last but one.

    Of few batches, it starts earlier and ends with the last one. A single batch has none, and its
    rate is that of the whole.
    """
    if len(ends) < 2:
        rate = _count_images(ends) / whole
        return Phases(
            head=0.0,
            steady_rate=rate,
            tail=0.0,
        )

    half = len(ends) // 2
    warm_up = min(WARM_UP_BATCHES, half)
    warm_up_end = ends[warm_up - 1]
    steady = ends[warm_up:-1] or ends[warm_up:]
    steady_end = steady[-1]

    began = warm_up_end.seconds
    ended = steady_end.seconds
    images = _count_images(steady)
    return Phases(
        head=began,
        steady_rate=images / (ended - began),
        tail=whole - ended,
    )


def _count_images(ends: Sequence[BatchEnd]) -> int:
    counts = [end.images for end in ends]
    return sum(counts)
