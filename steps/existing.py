"""The planned images that earlier runs hold, found by image_id: range by range of ids, so that memory is flat.

Neither side fits in memory: new ids are distributed over files on this disk, and of each run's index the pieces of one
range are read and matched.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps import holdings, spool
from imagekiln.steps.buckets import NUMBERED, Buckets, Ids, Records, from_bytes, overlapping
from imagekiln.steps.database import Database
from imagekiln.steps.in_order import in_order
from imagekiln.steps.storage import Store, open_store

BUCKET_IDS = 2**21
READERS = 4
NUMBER = pa.schema([pa.field("number", pa.int64())])


def mark(database: Database, folder: Path, runs: Sequence[str]) -> None:
    """From `once`, make the table `existing` of what the runs at these URIs hold, and the view `planned` of the rest.

    Raises BadInput where a run has no index that can be read, TryAgain where storage fails.
    """
    database.run("CREATE TABLE existing (number BIGINT)")
    if runs:
        path = folder / "existing.arrow"
        # By way of the disk: DuckDB would pass on what storage raises as a text only.
        spool.write(path, _batches(_wanted(database, folder / "wanted"), [open_store(uri) for uri in runs]))
        database.register("held", spool.reader(path, NUMBER.names))
        database.run("INSERT INTO existing FROM held")
    database.run("CREATE VIEW planned AS SELECT * FROM once ANTI JOIN existing USING (number)")


def _wanted(database: Database, folder: Path) -> Buckets:
    """The ids that are to be made, each with the image's number."""
    folder.mkdir()
    (count,) = database.table("SELECT count(*) AS images FROM once")["images"].to_pylist()
    buckets = Buckets(folder, max(1, -(-count // BUCKET_IDS)), NUMBERED)
    for batch in database.stream("SELECT unhex(image_id) AS id, number FROM once"):
        records = np.empty(len(batch), NUMBERED)
        records["id"], records["number"] = from_bytes(batch["id"]), batch["number"].to_numpy()
        buckets.add(records)
    return buckets


def _batches(wanted: Buckets, runs: list[Store]) -> Iterator[pa.RecordBatch]:
    """The numbers of the images that are held, a batch for each bucket."""
    indexes = _Indexes(runs)
    for bucket in range(wanted.count):
        held = _held(wanted.read(bucket), indexes.overlapping(bucket, wanted.count))
        yield pa.RecordBatch.from_arrays([pa.array(held)], schema=NUMBER)


def _held(wanted: Records, pieces: Iterator[Ids]) -> npt.NDArray[np.int64]:
    """The numbers of those images, sorted by id, that are in one of the pieces."""
    ids = np.ascontiguousarray(wanted["id"])
    halves, found = _first_halves(ids), np.zeros(len(ids), np.bool_)
    for piece in pieces if len(ids) else ():
        # Whole numbers are found in a fifth of the time that texts take, so most of the piece goes by them.
        there = _first_halves(piece)
        likely = piece[halves[np.searchsorted(halves, there).clip(max=len(ids) - 1)] == there]
        places = np.searchsorted(ids, likely).clip(max=len(ids) - 1)
        found[places[ids[places] == likely]] = True
    numbers: npt.NDArray[np.int64] = wanted["number"][found]
    return numbers


def _first_halves(ids: Ids) -> npt.NDArray[np.uint64]:
    """The first eight bytes of each id as a number: in the same order."""
    return ids.view(">u8")[::2].astype(np.uint64)


class _Indexes:
    """The indexes of some runs, whose first pieces tell how many there are."""

    def __init__(self, runs: list[Store]) -> None:
        self._runs = runs
        self._sizes: list[int] = []

    def overlapping(self, bucket: int, count: int) -> Iterator[Ids]:
        """Every piece that shares ids with one of `count` ranges; of each run the first, where none was read yet."""
        fresh = not self._sizes
        for ids, size in in_order(self._first, len(self._runs), READERS) if fresh else ():
            self._sizes.append(size)
            yield ids
        places = [
            (run, piece)
            for run, size in enumerate(self._sizes)
            for piece in overlapping(bucket, count, size)
            if not (fresh and piece == 0)
        ]
        for ids, _ in in_order(lambda place: self._read(*places[place]), len(places), READERS):
            yield ids

    def _first(self, run: int) -> tuple[Ids, int]:
        return self._read(run, 0)

    def _read(self, run: int, piece: int) -> tuple[Ids, int]:
        return holdings.read(self._runs[run], piece)
