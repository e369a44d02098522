"""Numbers that come in order, compared with others that do, without holding either."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64Array = npt.NDArray[np.int64]


class SortedStream:
    """A stream of numbers that rise."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Take the stream, whose only column is `number`."""
        self._batches = batches
        self._ahead = np.empty(0, np.int64)

    def contains(self, numbers: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each of these numbers, which rise and are larger than all asked for before, is in the stream."""
        if not len(numbers):
            return np.empty(0, np.bool_)
        read = [self._ahead]
        while not (len(read[-1]) and read[-1][-1] > numbers[-1]) and (batch := next(self._batches, None)):
            read.append(batch["number"].to_numpy())
        there = np.concatenate(read)
        passed = np.searchsorted(there, numbers[-1], side="right")
        self._ahead = there[passed:]
        return np.isin(numbers, there[:passed], assume_unique=True)
