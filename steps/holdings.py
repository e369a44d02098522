"""Which images a run holds: the ids of those that are ok, as an index beside the manifest that later plans look into.

It lies in pieces of some megabytes, each a range of ids and sorted, so that memory is flat for any number of them.
How many pieces there are follows from the plan, and each says it.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import names, tables
from imagekiln.steps.buckets import ID_DTYPE, ID_RECORD_DTYPE, IdArray, IdBuckets, ids_from_bytes, ids_from_hex
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.storage import Store

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
        self._buckets = IdBuckets(Path(self._folder.name), max(1, -(-planned // IDS_PER_CHUNK)), ID_RECORD_DTYPE)

    def __enter__(self) -> "ImageIndexWriter":
        """Begin with no image."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
            self._store.replace(names.image_ids_key(number), _chunk_to_parquet(ids, self._buckets.count))


def read_index_chunk(store: Store, number: int) -> tuple[IdArray, int]:
    """One piece of a run's index, and how many there are. Raises BadInput where there is none or it is damaged."""
    where = store.uri_of(names.image_ids_key(number))
    try:
        table = tables.read_table(store, names.image_ids_key(number))
    except Missing as error:
        raise BadInput(f"{where}: is not there, so nobody knows what the run holds. Aggregate it again.") from error
    told = (table.schema.metadata or {}).get(CHUNK_COUNT_METADATA, b"")
    pieces = int(told) if told.isdigit() else 0
    if table.schema != IMAGE_INDEX_SCHEMA or table[ID_COLUMN].null_count or not number < pieces <= MAX_CHUNKS:
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
    return tables.to_parquet(pa.Table.from_arrays([column], schema=schema))
