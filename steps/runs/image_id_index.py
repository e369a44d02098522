"""The image index of a run: the ids of its images that are ok, in chunks beside the manifest.

Those that were taken down are in it, too, so that no later run makes them.

Later plans match their own ids with it, to omit images that exist. Each chunk has a few megabytes,
covers an equal range of ids and is sorted, so that memory stays flat for any number of images. The
number of chunks follows from the plan.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.commits import digest_of
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
ID_COLUMN = "image_id"
IMAGE_INDEX_SCHEMA = pa.schema([pa.field(ID_COLUMN, pa.binary(ID_DTYPE.itemsize))])


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
    scaled = leading * np.uint64(count)
    return scaled >> np.uint64(32)


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


@contextmanager
def collect_image_ids(planned: int) -> Iterator[IdBuckets]:
    """The ids of the images of a run with so many planned ones; none at first.

    Its working files have 16 bytes an image, and are deleted at the end.
    """
    chunk_count = max(1, -(-planned // IDS_PER_CHUNK))
    with temporary_folder("imagekiln-ids-") as folder:
        yield IdBuckets(Path(folder), chunk_count, ID_RECORD_DTYPE)


def add_image_ids(ids: IdBuckets, manifest: pa.Table) -> None:
    """Add the images of one shard that no later run is to make. Raises TryAgain."""
    is_listed = pc.is_in(manifest["status"], pa.array(["ok", FORGOTTEN_STATUS]))
    images = manifest.filter(is_listed)
    image_ids = ids_from_hex(images[ID_COLUMN])
    records = image_ids.view(ID_RECORD_DTYPE)
    ids.add(records)


def write_image_index(store: Store, ids: IdBuckets) -> tuple[str, ...]:
    """Write the index of the run in `store`, and return the keys of its chunks."""
    keys = []
    for number in range(ids.count):
        records = ids.read(number)
        image_ids = np.ascontiguousarray(records["id"])
        content = _chunk_to_parquet(image_ids)
        key = image_ids_key(number, digest_of(content))
        store.create(key, content)
        keys.append(key)
    return tuple(keys)


def read_index_chunk(store: Store, keys: Sequence[str], number: int) -> tuple[IdArray, int]:
    """One chunk of a run's index with these chunks, and the number of chunks.

    Raises BadInput where the chunk is missing or damaged.
    """
    where = store.uri_of(keys[number] if number < len(keys) else "image-ids/")
    try:
        table = read_table(store, keys[number])
    except (Missing, IndexError) as error:
        raise BadInput(
            f"{where}: is missing, so it is unknown which images the run holds. "
            "Aggregate the run again."
        ) from error
    if table.schema != IMAGE_INDEX_SCHEMA or table[ID_COLUMN].null_count:
        raise BadInput(f"{where}: is not a chunk of an image index. Aggregate the run again.")
    column = table[ID_COLUMN].combine_chunks()
    return ids_from_bytes(column), len(keys)


def _chunk_to_parquet(ids: IdArray) -> bytes:
    kind = IMAGE_INDEX_SCHEMA.field(ID_COLUMN).type
    validity = None  # no null
    buffers = [validity, pa.py_buffer(ids)]
    column = pa.FixedSizeBinaryArray.from_buffers(kind, len(ids), buffers)
    table = pa.Table.from_arrays([column], schema=IMAGE_INDEX_SCHEMA)
    return to_parquet(table)
