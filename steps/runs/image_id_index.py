"""The image index of a run: the ids of its images that are ok, in chunks beside the manifest.

Those that were taken down are in it, too, so that no later run makes them.

Later plans match their own ids with it, to omit images that exist. Each chunk has a few megabytes,
covers an equal range of ids and is sorted, so that memory stays flat for any number of images. The
number of chunks follows from the plan, and is in the metadata of each.
"""

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.image import FORGOTTEN_STATUS
from imagekiln.steps.runs.keys import image_ids_key
from imagekiln.steps.runs.tables import read_table, to_parquet
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.store import Store

ID_DTYPE = np.dtype("S16")
ID_RECORD_DTYPE = np.dtype([("id", ID_DTYPE)])
NUMBERED_ID_DTYPE = np.dtype([("id", ID_DTYPE), ("number", np.int64)])
IdArray = npt.NDArray[np.bytes_]
RecordArray = npt.NDArray[Any]  # of a type with the field `id`

BUFFER_RECORDS = 2**19  # held in memory before they are written to the bucket files
IDS_PER_CHUNK = 2**19  # 8 MiB
MAX_CHUNKS = 100_000
MAX_COUNT_DIGITS = 6
ID_COLUMN = "image_id"
IMAGE_INDEX_SCHEMA = pa.schema([pa.field(ID_COLUMN, pa.binary(ID_DTYPE.itemsize))])
CHUNK_COUNT_METADATA = b"imagekiln.pieces"


def ids_from_hex(column: pa.Array | pa.ChunkedArray) -> IdArray:
    """The ids in a column of 32 hexadecimal digits each."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    whole_column = pa.ListArray.from_arrays([0, len(column)], column)
    digits = pc.binary_join(whole_column, "")[0].as_py()
    content = bytes.fromhex(digits)
    return np.frombuffer(content, ID_DTYPE)


def ids_from_bytes(column: pa.Array) -> IdArray:
    """The ids in a column of 16 bytes each, without a null."""
    fixed = column.cast(pa.binary(ID_DTYPE.itemsize))
    content = fixed.buffers()[1] or b""
    return np.frombuffer(
        content,
        ID_DTYPE,
        count=len(fixed),
        offset=fixed.offset * ID_DTYPE.itemsize,
    )


def bucket_numbers(ids: IdArray, count: int) -> npt.NDArray[np.uint64]:
    """Which of `count` equal ranges each id falls into."""
    words = np.ascontiguousarray(ids).view(">u4")
    words_per_id = ID_DTYPE.itemsize // words.itemsize
    leading = words[::words_per_id].astype(np.uint64)
    return leading * np.uint64(count) >> np.uint64(32)


def overlapping_buckets(bucket: int, count: int, other_count: int) -> range:
    """Which of `other_count` equal ranges share ids with one of `count`."""
    first = bucket * other_count // count
    end = -(-(bucket + 1) * other_count // count)
    return range(first, end)


class IdBuckets:
    """Records distributed by id over files, one for each range. Fill it, then read each bucket."""

    def __init__(self, folder: Path, count: int, dtype: np.dtype[Any]) -> None:
        """Start empty, in an empty folder with room for all records, or in a new one.

        Raises TryAgain where the disk is full.
        """
        with translate_errors(str(folder)):
            folder.mkdir(exist_ok=True)
        self.count = count
        self._folder = folder
        self._dtype = dtype
        self._pending: list[RecordArray] = []

    def add(self, records: RecordArray) -> None:
        """Add records of the buckets' type. Raises TryAgain where the disk is full."""
        self._pending.append(records)
        if sum(map(len, self._pending)) >= BUFFER_RECORDS:
            self._flush()

    def read(self, number: int) -> RecordArray:
        """One bucket, sorted by id. Raises TryAgain where the disk is full."""
        self._flush()
        path = self._path(number)
        if not path.exists():
            return np.empty(0, self._dtype)
        with translate_errors(str(path)):
            records = np.fromfile(path, self._dtype)
        order = np.argsort(records["id"])
        return records[order]

    def _flush(self) -> None:
        if not any(map(len, self._pending)):
            return
        records = np.concatenate(self._pending)
        self._pending.clear()

        buckets = bucket_numbers(records["id"], self.count)
        order = np.argsort(buckets, kind="stable")
        records = records[order]
        buckets = buckets[order]

        starts = np.flatnonzero(np.diff(buckets)) + 1
        for chunk in np.split(records, starts):
            self._append(chunk)

    def _append(self, chunk: RecordArray) -> None:
        """Append records that share a bucket to its file."""
        first_id = chunk["id"][:1]
        [number] = bucket_numbers(first_id, self.count)
        path = self._path(number)
        with translate_errors(str(path)), path.open("ab") as file:
            file.write(chunk.tobytes())

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}"


class RunImageIds:
    """The ids of a run's images that are ok, as its index has them.

    Use it in a `with` block, which deletes its working files: 16 bytes an image.
    """

    def __init__(self, planned: int) -> None:
        """Begin without images, for a run with this number of planned ones."""
        chunk_count = max(1, -(-planned // IDS_PER_CHUNK))
        self._folder = temporary_folder("imagekiln-ids-")
        folder = Path(self._folder.name)
        self._buckets = IdBuckets(folder, chunk_count, ID_RECORD_DTYPE)

    def __enter__(self) -> "RunImageIds":
        """The ids themselves."""
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
        """Add the images of one shard that no later run is to make. Raises TryAgain."""
        is_listed = pc.is_in(manifest["status"], pa.array(["ok", FORGOTTEN_STATUS]))
        images = manifest.filter(is_listed)
        ids = ids_from_hex(images[ID_COLUMN])
        self._buckets.add(ids.view(ID_RECORD_DTYPE))

    @property
    def chunk_count(self) -> int:
        """The number of chunks of the index."""
        return self._buckets.count

    def read_chunk(self, number: int) -> IdArray:
        """The ids of one chunk, sorted. Raises TryAgain where the disk is full."""
        records = self._buckets.read(number)
        return np.ascontiguousarray(records["id"])


def write_image_index(store: Store, ids: RunImageIds) -> None:
    """Write the index of the run in `store`, over an earlier one."""
    for number in range(ids.chunk_count):
        chunk = _chunk_to_parquet(ids.read_chunk(number), ids.chunk_count)
        store.replace(image_ids_key(number), chunk)


def find_index_difference(store: Store, ids: RunImageIds) -> str | None:
    """The first chunk of a run's index that does not have these ids, in a sentence, or None.

    Raises BadInput where the index is damaged.
    """
    for number in range(ids.chunk_count):
        where = store.uri_of(image_ids_key(number))
        stored, chunk_count = read_index_chunk(store, number)
        if chunk_count != ids.chunk_count:
            return f"{where}: is one of {chunk_count} chunks and not of {ids.chunk_count}"
        expected = ids.read_chunk(number)
        if len(stored) != len(expected):
            return f"{where}: names {len(stored)} images and not {len(expected)}"
        if not np.array_equal(stored, expected):
            return f"{where}: names other images than the manifest"
    return None


def read_index_chunk(store: Store, number: int) -> tuple[IdArray, int]:
    """One chunk of a run's index, and the number of chunks.

    Raises BadInput where the chunk is missing or damaged.
    """
    key = image_ids_key(number)
    where = store.uri_of(key)
    try:
        table = read_table(store, key)
    except Missing as error:
        raise BadInput(
            f"{where}: is missing, so it is unknown which images the run holds. "
            "Aggregate the run again."
        ) from error
    chunk_count = _chunk_count(table.schema)
    if (
        table.schema != IMAGE_INDEX_SCHEMA
        or table[ID_COLUMN].null_count
        or not number < chunk_count <= MAX_CHUNKS
    ):
        raise BadInput(f"{where}: is not a chunk of an image index. Aggregate the run again.")
    column = table[ID_COLUMN].combine_chunks()
    ids = ids_from_bytes(column)
    return ids, chunk_count


def _chunk_count(schema: pa.Schema) -> int:
    metadata = schema.metadata or {}
    digits = metadata.get(CHUNK_COUNT_METADATA, b"")
    # A longer number is no count, and Python takes long to read one.
    if not digits.isdigit() or len(digits) > MAX_COUNT_DIGITS:
        return 0
    return int(digits)


def _chunk_to_parquet(ids: IdArray, chunk_count: int) -> bytes:
    kind = IMAGE_INDEX_SCHEMA.field(ID_COLUMN).type
    validity = None  # no null
    buffers = [validity, pa.py_buffer(ids)]
    column = pa.FixedSizeBinaryArray.from_buffers(kind, len(ids), buffers)
    metadata = {CHUNK_COUNT_METADATA: str(chunk_count).encode()}
    schema = IMAGE_INDEX_SCHEMA.with_metadata(metadata)
    table = pa.Table.from_arrays([column], schema=schema)
    return to_parquet(table)
