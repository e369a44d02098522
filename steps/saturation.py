"""The search for a batch size: doubled until the device is saturated, and the smallest that is nearly as fast."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

# Below this gain in images a second, a larger batch is not worth its memory and its longer parts.
GAIN = 0.03
PATIENCE = 2  # doublings in a row that gain too little: one alone may be noise, or a step in how kernels are cut
HEADROOM = 0.9  # the share of the device's memory that a batch may take: other texts and a busy card take more
LARGEST = 256
Stopped = Literal["saturated", "memory", "largest", "time"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch of `batch` images took: seconds in all, and bytes at most, None where the device does not tell."""

    batch: int
    seconds: float
    peak: int | None = None

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.batch / self.seconds


@dataclass(frozen=True, slots=True)
class Found:
    """The batch to take, every batch that was measured, and why none larger was."""

    chosen: Measured
    measured: tuple[Measured, ...]
    stopped: Stopped


def search(
    measure: Callable[[int], Measured | None],
    memory: int | None,
    most: int = LARGEST,
    out_of_time: Callable[[], bool] = lambda: False,
) -> Found | None:
    """Measure batches of 1, 2, 4... up to `most`, and choose. None where not even one image fits.

    `measure` gives None for a batch that does not fit. `memory` is the device's, in bytes. Never chosen is a batch
    that leaves less than a tenth of it free, unless it is a single image.
    """
    measured: list[Measured] = []
    for batch in _doubled(most):
        if measured and out_of_time():
            return _chosen(measured, "time")
        found = measure(batch)
        if found is None or (measured and not _leaves_room(found, memory)):
            return _chosen(measured, "memory") if measured else None
        measured.append(found)
        if _saturated(measured):
            return _chosen(measured, "saturated")
    return _chosen(measured, "largest")


def _doubled(most: int) -> Iterator[int]:
    batch = 1
    while batch <= most:
        yield batch
        batch *= 2


def _leaves_room(found: Measured, memory: int | None) -> bool:
    return found.peak is None or memory is None or found.peak <= HEADROOM * memory


def _saturated(measured: Sequence[Measured]) -> bool:
    if len(measured) <= PATIENCE:
        return False
    before = max(each.rate for each in measured[:-PATIENCE])
    return all(each.rate < before * (1 + GAIN) for each in measured[-PATIENCE:])


def _chosen(measured: Sequence[Measured], stopped: Stopped) -> Found:
    enough = max(each.rate for each in measured) * (1 - GAIN)
    return Found(next(each for each in measured if each.rate >= enough), tuple(measured), stopped)
