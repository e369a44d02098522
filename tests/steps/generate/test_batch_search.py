"""The search for a batch size on stand-ins that saturate, run out of memory or are noisy."""

from collections.abc import Callable

import pytest

from imagekiln.steps.generate.trial import (
    BatchMeasurement,
    BatchSearchResult,
    search_batch_size,
)
from imagekiln.steps.job.tuning_file import MAX_BATCH_IMAGES, MAX_MEMORY_SHARE
from tests.texts import chance


class Device:
    """Takes a fixed time for a batch, and a time for each image beyond what it does at once."""

    def __init__(
        self, at_once: float, fits: int = MAX_BATCH_IMAGES, each: int = 0, noise: float = 0.0
    ) -> None:
        self.asked: list[int] = []
        self._at_once, self._fits, self._each = at_once, fits, each
        self._noise, self._chance = noise, chance(3)

    def __call__(self, batch: int) -> BatchMeasurement | None:
        self.asked.append(batch)
        if batch > self._fits:
            return None
        noise = 1 + self._noise * self._chance.random()
        return BatchMeasurement(
            batch, max(1.0, batch / self._at_once) * noise, batch * self._each or None
        )


def _found(
    measure: Callable[[int], BatchMeasurement | None],
    memory: int | None = None,
    most: int = MAX_BATCH_IMAGES,
) -> BatchSearchResult:
    found = search_batch_size(measure, memory, most)
    assert found is not None
    return found


@pytest.mark.parametrize(("at_once", "batch"), [(0.5, 1), (1, 1), (2, 2), (5, 8), (8, 8), (60, 64)])
def test_the_smallest_batch_that_saturates_is_chosen(at_once: float, batch: int) -> None:
    found = _found(Device(at_once))
    assert (found.best.batch_size, found.stop_reason) == (batch, "saturated")


def test_a_batch_that_gains_little_is_not_taken_for_the_end() -> None:
    """The second image may cost as much as the first, and the next two come cheaply."""
    seconds = {1: 1.0, 2: 1.99, 4: 2.5, 8: 5.0, 16: 10.0}
    assert _found(lambda batch: BatchMeasurement(batch, seconds[batch])).best.batch_size == 4


def test_out_of_memory_ends_the_search() -> None:
    device = Device(100, fits=8)
    found = _found(device)
    assert (found.best.batch_size, found.stop_reason, device.asked) == (
        8,
        "memory",
        [1, 2, 4, 8, 16],
    )
    assert [each.batch_size for each in found.measurements] == [1, 2, 4, 8]


def test_memory_is_not_filled_to_the_brim() -> None:
    found = _found(Device(100, each=10), memory=round(80 / MAX_MEMORY_SHARE) - 1)
    assert (found.best.batch_size, found.stop_reason) == (4, "memory")
    assert (
        _found(Device(100, each=10), memory=round(80 / MAX_MEMORY_SHARE) + 1).best.batch_size == 8
    )


def test_where_not_even_one_image_fits_nothing_is_found() -> None:
    assert search_batch_size(Device(1, fits=0), None) is None


def test_no_batch_is_larger_than_asked_for() -> None:
    device = Device(1000)
    found = _found(device, most=4)
    assert (found.best.batch_size, found.stop_reason, device.asked) == (4, "largest", [1, 2, 4])


def test_when_time_is_over_what_was_measured_decides() -> None:
    device = Device(100)
    found = search_batch_size(device, None, out_of_time=lambda: len(device.asked) == 3)
    assert found is not None
    assert (found.best.batch_size, found.stop_reason) == (4, "time")
    at_once = search_batch_size(Device(100), None, out_of_time=lambda: True)
    assert at_once is not None
    assert at_once.best.batch_size == 1
