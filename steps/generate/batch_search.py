"""The search for a batch size: doubled until the device is saturated, and the smallest that is nearly as fast."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from imagekiln.steps.job.tuning_file import MAX_BATCH_IMAGES, MAX_MEMORY_SHARE, StopReason

# Below this gain in images a second, a larger batch is not worth its memory and its longer parts.
MIN_GAIN = 0.03
PATIENCE = 2  # doublings in a row that gain too little: one alone may be noise, or a step in how kernels are cut


@dataclass(frozen=True, slots=True)
class BatchMeasurement:
    """What a batch of `batch` images took: seconds in all, and bytes at most, None where the device does not tell."""

    batch_size: int
    seconds: float
    peak_bytes: int | None = None

    @property
    def images_per_second(self) -> float:
        """Images a second."""
        return self.batch_size / self.seconds


@dataclass(frozen=True, slots=True)
class BatchSearchResult:
    """The batch to take, every batch that was measured, and why none larger was."""

    best: BatchMeasurement
    measurements: tuple[BatchMeasurement, ...]
    stop_reason: StopReason


def search_batch_size(
    measure: Callable[[int], BatchMeasurement | None],
    memory: int | None,
    most: int = MAX_BATCH_IMAGES,
    out_of_time: Callable[[], bool] = lambda: False,
) -> BatchSearchResult | None:
    """Measure batches of 1, 2, 4... up to `most`, and choose. None where not even one image fits.

    `measure` gives None for a batch that does not fit. `memory` is the device's, in bytes. Never chosen is a batch
    that leaves less than a tenth of it free, unless it is a single image.
    """
    measured: list[BatchMeasurement] = []
    for batch in _batch_sizes(most):
        if measured and out_of_time():
            return _choose_batch(measured, "time")
        found = measure(batch)
        if found is None or (measured and not _fits_in_memory(found, memory)):
            return _choose_batch(measured, "memory") if measured else None
        measured.append(found)
        if _is_saturated(measured):
            return _choose_batch(measured, "saturated")
    return _choose_batch(measured, "largest")


def _batch_sizes(most: int) -> Iterator[int]:
    batch = 1
    while batch <= most:
        yield batch
        batch *= 2


def _fits_in_memory(found: BatchMeasurement, memory: int | None) -> bool:
    return (
        found.peak_bytes is None or memory is None or found.peak_bytes <= MAX_MEMORY_SHARE * memory
    )


def _is_saturated(measured: Sequence[BatchMeasurement]) -> bool:
    if len(measured) <= PATIENCE:
        return False
    before = max(each.images_per_second for each in measured[:-PATIENCE])
    return all(each.images_per_second < before * (1 + MIN_GAIN) for each in measured[-PATIENCE:])


def _choose_batch(measured: Sequence[BatchMeasurement], stopped: StopReason) -> BatchSearchResult:
    enough = max(each.images_per_second for each in measured) * (1 - MIN_GAIN)
    return BatchSearchResult(
        next(each for each in measured if each.images_per_second >= enough),
        tuple(measured),
        stopped,
    )
