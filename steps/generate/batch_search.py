"""The search for a batch size: doubled until throughput saturates, then chosen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imagekiln.steps.job.tuning_file import MAX_BATCH_IMAGES, MAX_MEMORY_SHARE, StopReason

# Below this gain in images a second, a larger batch is not worth its memory and its longer parts.
MIN_GAIN = 0.03
# Doublings in a row that gain too little: one alone may be noise, or a step in a kernel's tiling.
PATIENCE = 2


@dataclass(frozen=True, slots=True)
class BatchMeasurement:
    """The seconds that a batch took, and its peak memory;

    None where the device does not report it.
    """

    batch_size: int
    seconds: float
    peak_bytes: int | None = None

    @property
    def images_per_second(self) -> float:
        """Throughput at this batch size."""
        return self.batch_size / self.seconds


@dataclass(frozen=True, slots=True)
class BatchSearchResult:
    """The batch size to use, all that were measured, and why the search stopped."""

    best: BatchMeasurement
    measurements: tuple[BatchMeasurement, ...]
    stop_reason: StopReason


def search_batch_size(
    measure: Callable[[int], BatchMeasurement | None],
    memory: int | None,
    max_size: int = MAX_BATCH_IMAGES,
    out_of_time: Callable[[], bool] = lambda: False,
) -> BatchSearchResult | None:
    """Measure batches of 1, 2, 4... up to `max_size`, and choose. None where not one image fits.

    `measure` returns None for a batch that does not fit. `memory` is the device's, in bytes. A
    batch that leaves less than a tenth of it free is never chosen, unless it is a single image.
    """
    measurements: list[BatchMeasurement] = []
    size = 1
    while size <= max_size:
        if measurements and out_of_time():
            return _choose_batch(measurements, "time")

        latest = measure(size)
        if latest is None or (measurements and not _fits_in_memory(latest, memory)):
            return _choose_batch(measurements, "memory") if measurements else None

        measurements.append(latest)
        if _is_saturated(measurements):
            return _choose_batch(measurements, "saturated")
        size *= 2
    return _choose_batch(measurements, "largest")


def _fits_in_memory(measurement: BatchMeasurement, memory: int | None) -> bool:
    if measurement.peak_bytes is None or memory is None:
        return True
    return measurement.peak_bytes <= MAX_MEMORY_SHARE * memory


def _is_saturated(measurements: Sequence[BatchMeasurement]) -> bool:
    if len(measurements) <= PATIENCE:
        return False
    best_before = max(measurement.images_per_second for measurement in measurements[:-PATIENCE])
    threshold = best_before * (1 + MIN_GAIN)
    return all(
        measurement.images_per_second < threshold for measurement in measurements[-PATIENCE:]
    )


def _choose_batch(
    measurements: Sequence[BatchMeasurement], stop_reason: StopReason
) -> BatchSearchResult:
    enough = max(measurement.images_per_second for measurement in measurements) * (1 - MIN_GAIN)
    best = next(
        measurement for measurement in measurements if measurement.images_per_second >= enough
    )
    return BatchSearchResult(best, tuple(measurements), stop_reason)
