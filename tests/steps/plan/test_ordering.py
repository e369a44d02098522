import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from imagekiln.steps.plan.ordering import SortedStream

Numbers = npt.NDArray[np.int64]


def stream(numbers: Numbers, size: int) -> SortedStream:
    """The numbers in batches."""
    batches = [
        pa.RecordBatch.from_pydict({"number": numbers[start : start + size]})
        for start in range(0, len(numbers), size)
    ]
    return SortedStream(iter(batches))


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("asked_size", [1, 7, 1000])
def test_each_number_is_found_as_a_set_would_find_it(size: int, asked_size: int) -> None:
    rng = np.random.default_rng(7)
    there = np.unique(rng.integers(0, 300, 120))
    asked = np.unique(rng.integers(0, 300, 150))
    passing = stream(there, size)
    found = [
        passing.contains(asked[start : start + asked_size])
        for start in range(0, len(asked), asked_size)
    ]
    assert np.array_equal(np.concatenate(found), np.isin(asked, there))


def test_empty_stream_and_empty_question_are_no_mistake() -> None:
    assert not stream(np.empty(0, np.int64), 1).contains(np.array([1, 2])).any()
    passing = stream(np.array([5]), 1)
    assert len(passing.contains(np.empty(0, np.int64))) == 0
    assert passing.contains(np.array([5])).all()


def test_no_more_is_read_than_is_asked_for() -> None:
    read = 0

    def counted() -> object:
        nonlocal read
        for number in range(1000):
            read += 1
            yield pa.RecordBatch.from_pydict({"number": [number]})

    passing = SortedStream(counted())  # type: ignore[arg-type]  # a generator of batches
    passing.contains(np.array([10]))
    assert read == 12
