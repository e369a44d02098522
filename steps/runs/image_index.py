"""Which images a run holds: the ids of those that are ok, as an index beside the manifest that later plans look into.

It lies in pieces of some megabytes, each a range of ids and sorted, so that memory is flat for any number of them.
How many pieces there are follows from the plan, and each says it.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.keys import image_ids_key
from imagekiln.steps.runs.tables import read_table, to_parquet
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import Store

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
    return np.frombuffer(
        fixed.buffers()[1] or b"", ID_DTYPE, len(fixed), fixed.offset * ID_DTYPE.itemsize
    )


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
        for number, piece in (
            zip(there, np.split(records[order], starts[1:]), strict=True) if len(there) else ()
        ):
            with translate_errors(str(self._path(number))), self._path(number).open("ab") as file:
                file.write(piece.tobytes())

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}"


IDS_PER_CHUNK = 2**19  # 8 MiB
ID_COLUMN = "image_id"
CHUNK_COUNT_METADATA = b"imagekiln.pieces"
MAX_CHUNKS = 100_000
IMAGE_INDEX_SCHEMA = pa.schema([pa.field(ID_COLUMN, pa.binary(ID_DTYPE.itemsize))])


class ImageIndexWriter:
    """The index of one run while it is made. Use it in a `with` block, which tidies up the disk."""

    def __init__(self, store: Store, planned: int) -> None:
        """Take the run's folder, and the number of its planned images."""
        self._store = store
        self._folder = tempfile.TemporaryDirectory(prefix="imagekiln-ids-")
        self._buckets = IdBuckets(
            Path(self._folder.name), max(1, -(-planned // IDS_PER_CHUNK)), ID_RECORD_DTYPE
        )

    def __enter__(self) -> "ImageIndexWriter":
        """Begin with no image."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delete the working files."""
        self._folder.cleanup()

    def add(self, manifest: pa.Table) -> None:
        """Take the images of one shard. Raises TryAgain where the disk is full."""
        good = manifest.filter(pc.equal(manifest["status"], "ok"))
        self._buckets.add(ids_from_hex(good[ID_COLUMN]).view(ID_RECORD_DTYPE))

    def write(self) -> None:
        """Write the index, over one that was there."""
        for number in range(self._buckets.count):
            ids = np.ascontiguousarray(self._buckets.read(number)["id"])
            self._store.replace(image_ids_key(number), _chunk_to_parquet(ids, self._buckets.count))


def read_index_chunk(store: Store, number: int) -> tuple[IdArray, int]:
    """One piece of a run's index, and how many there are. Raises BadInput where there is none or it is damaged."""
    where = store.uri_of(image_ids_key(number))
    try:
        table = read_table(store, image_ids_key(number))
    except Missing as error:
        raise BadInput(
            f"{where}: is not there, so nobody knows what the run holds. Aggregate it again."
        ) from error
    told = (table.schema.metadata or {}).get(CHUNK_COUNT_METADATA, b"")
    pieces = int(told) if told.isdigit() else 0
    if (
        table.schema != IMAGE_INDEX_SCHEMA
        or table[ID_COLUMN].null_count
        or not number < pieces <= MAX_CHUNKS
    ):
        raise BadInput(f"{where}: is no piece of an index. Aggregate the run again.")
    return ids_from_bytes(table[ID_COLUMN].combine_chunks()), pieces


def iter_index_chunks(store: Store) -> Iterator[IdArray]:
    """Every piece of a run's index, in order."""
    number, count = 0, 1
    while number < count:
        ids, count = read_index_chunk(store, number)
        yield ids
        number += 1


def count_indexed_images(store: Store) -> int:
    """How many images a run holds, as its index has it."""
    return sum(map(len, iter_index_chunks(store)))


def _chunk_to_parquet(ids: IdArray, pieces: int) -> bytes:
    column = pa.FixedSizeBinaryArray.from_buffers(
        IMAGE_INDEX_SCHEMA.field(ID_COLUMN).type, len(ids), [None, pa.py_buffer(ids)]
    )
    schema = IMAGE_INDEX_SCHEMA.with_metadata({CHUNK_COUNT_METADATA: str(pieces).encode()})
    return to_parquet(pa.Table.from_arrays([column], schema=schema))
