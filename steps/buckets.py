"""Image ids as 16 bytes each, distributed by their first digits over files on this disk, and sorted file by file.

The memory is that of one bucket, however many ids there are: an id is a hash, so buckets fill evenly.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.store_errors import translate_errors

ID_DTYPE = np.dtype("S16")
ID_RECORD_DTYPE = np.dtype([("id", ID_DTYPE)])
NUMBERED_ID_DTYPE = np.dtype([("id", ID_DTYPE), ("number", np.int64)])
BUFFER_RECORDS = 2**19  # records that wait in memory for their files
IdArray = npt.NDArray[np.bytes_]
RecordArray = npt.NDArray[Any]  # of a type with the field `id`


def ids_from_hex(column: pa.Array | pa.ChunkedArray) -> IdArray:
    """The ids in a column of 32 hexadecimal digits each."""
    texts = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "")[0].as_py()
    return np.frombuffer(bytes.fromhex(joined), ID_DTYPE)


def ids_from_bytes(column: pa.Array) -> IdArray:
    """The ids in a column of 16 bytes each, without a null."""
    fixed = column.cast(pa.binary(ID_DTYPE.itemsize))
    return np.frombuffer(fixed.buffers()[1] or b"", ID_DTYPE, len(fixed), fixed.offset * ID_DTYPE.itemsize)


def bucket_numbers(ids: IdArray, count: int) -> npt.NDArray[np.uint64]:
    """Which of `count` equal ranges each id falls into."""
    leading = np.ascontiguousarray(ids).view(">u4")[::4].astype(np.uint64)
    return leading * np.uint64(count) >> np.uint64(32)


def overlapping_buckets(bucket: int, count: int, others: int) -> range:
    """Which of `others` equal ranges share ids with one of `count`."""
    return range(bucket * others // count, -(-(bucket + 1) * others // count))


class IdBuckets:
    """Records with an id, in as many files as there are to be buckets. Fill it, then read each bucket."""

    def __init__(self, folder: Path, count: int, kind: np.dtype[Any]) -> None:
        """Begin empty. `folder` must be there, for no one else, with room for all records."""
        self.count = count
        self._folder = folder
        self._kind = kind
        self._waiting: list[RecordArray] = []

    def add(self, records: RecordArray) -> None:
        """Take some records of the buckets' type. Raises TryAgain where the disk is full."""
        self._waiting.append(records)
        if sum(map(len, self._waiting)) >= BUFFER_RECORDS:
            self._distribute()

    def read(self, number: int) -> RecordArray:
        """One bucket, sorted by id."""
        self._distribute()
        path = self._path(number)
        with translate_errors(str(path)):
            records = np.fromfile(path, self._kind) if path.exists() else np.empty(0, self._kind)
        return records[np.argsort(records["id"])]

    def _distribute(self) -> None:
        records = np.concatenate([np.empty(0, self._kind), *self._waiting])
        self._waiting.clear()
        places = bucket_numbers(records["id"], self.count)
        order = np.argsort(places, kind="stable")
        there, starts = np.unique(places[order], return_index=True)
        for number, piece in zip(there, np.split(records[order], starts[1:]), strict=True) if len(there) else ():
            with translate_errors(str(self._path(number))), self._path(number).open("ab") as file:
                file.write(piece.tobytes())

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}"
