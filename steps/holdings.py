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
from imagekiln.steps.buckets import ID, ID_ONLY, Buckets, Ids, from_bytes, from_hex
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.storage import Store

PIECE_IDS = 2**19  # 8 MiB
COLUMN = "image_id"
PIECES = b"imagekiln.pieces"
MOST_PIECES = 100_000
SCHEMA = pa.schema([pa.field(COLUMN, pa.binary(ID.itemsize))])


class Holdings:
    """The index of one run while it is made. Use it in a `with` block, which tidies up the disk."""

    def __init__(self, store: Store, planned: int) -> None:
        """Take the run's folder, and the number of its planned images."""
        self._store = store
        self._folder = tempfile.TemporaryDirectory(prefix="imagekiln-ids-")
        self._buckets = Buckets(Path(self._folder.name), max(1, -(-planned // PIECE_IDS)), ID_ONLY)

    def __enter__(self) -> "Holdings":
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
        self._buckets.add(from_hex(good[COLUMN]).view(ID_ONLY))

    def write(self) -> None:
        """Write the index, over one that was there."""
        for number in range(self._buckets.count):
            ids = np.ascontiguousarray(self._buckets.read(number)["id"])
            self._store.replace(names.image_ids(number), _to_parquet(ids, self._buckets.count))


def read(store: Store, number: int) -> tuple[Ids, int]:
    """One piece of a run's index, and how many there are. Raises BadInput where there is none or it is damaged."""
    where = store.at(names.image_ids(number))
    try:
        table = tables.read(store, names.image_ids(number))
    except Missing as error:
        raise BadInput(f"{where}: is not there, so nobody knows what the run holds. Aggregate it again.") from error
    told = (table.schema.metadata or {}).get(PIECES, b"")
    pieces = int(told) if told.isdigit() else 0
    if table.schema != SCHEMA or table[COLUMN].null_count or not number < pieces <= MOST_PIECES:
        raise BadInput(f"{where}: is no piece of an index. Aggregate the run again.")
    return from_bytes(table[COLUMN].combine_chunks()), pieces


def pieces(store: Store) -> Iterator[Ids]:
    """Every piece of a run's index, in order."""
    number, count = 0, 1
    while number < count:
        ids, count = read(store, number)
        yield ids
        number += 1


def count(store: Store) -> int:
    """How many images a run holds, as its index has it."""
    return sum(map(len, pieces(store)))


def _to_parquet(ids: Ids, pieces: int) -> bytes:
    column = pa.FixedSizeBinaryArray.from_buffers(SCHEMA.field(COLUMN).type, len(ids), [None, pa.py_buffer(ids)])
    schema = SCHEMA.with_metadata({PIECES: str(pieces).encode()})
    return tables.to_parquet(pa.Table.from_arrays([column], schema=schema))
