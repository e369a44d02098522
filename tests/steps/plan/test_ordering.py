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
@pytest.mark.parametrize("query_size", [1, 7, 1000])
def test_each_number_is_found_as_a_set_would_find_it(size: int, query_size: int) -> None:
    rng = np.random.default_rng(7)
    members = np.unique(rng.integers(0, 300, 120))
    queries = np.unique(rng.integers(0, 300, 150))
    sorted_stream = stream(members, size)
    results = [
        sorted_stream.contains(queries[start : start + query_size])
        for start in range(0, len(queries), query_size)
    ]
    assert np.array_equal(np.concatenate(results), np.isin(queries, members))
