"""The planned images that earlier runs hold, found by image_id: range by range of ids, so that memory is flat.

Neither side fits in memory: new ids are distributed over files on this disk, and of each run's index the pieces of one
range are read and matched.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.image_index import (
    NUMBERED_ID_DTYPE,
    IdArray,
    IdBuckets,
    RecordArray,
    ids_from_bytes,
    overlapping_buckets,
    read_index_chunk,
)
from imagekiln.steps.runs.keys import EXISTING_RUNS_KEY
from imagekiln.steps.runs.registry import RunId, read_registry
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import Database, arrow_stream_reader, write_arrow_file
from imagekiln.steps.storage.store import Store, require_conditional_writes

RUN_IDS_TYPE_ADAPTER: TypeAdapter[tuple[RunId, ...]] = TypeAdapter(tuple[RunId, ...])


def successful_runs(job: Job) -> tuple[str, ...]:
    """The ids of the successful runs under the job's output, oldest first; none where it is not to skip any."""
    return tuple(entry.run_id for entry in read_registry(job.output)) if job.skip_existing else ()


def choose_existing_runs(store: Store, job: Job, run_id: str) -> tuple[str, ...]:
    """The runs that the plan of `run_id`, which lies in `store`, looks into. Raises BadInput on damage."""
    if not job.skip_existing:
        return ()
    try:
        return RUN_IDS_TYPE_ADAPTER.validate_json(store.read(EXISTING_RUNS_KEY))
    except Missing:
        return tuple(each for each in successful_runs(job) if each != run_id)
    except ValidationError as error:
        raise BadInput(
            f"{store.uri_of(EXISTING_RUNS_KEY)}: is damaged. Delete it, or choose another run_id."
        ) from error


def freeze_existing_runs(store: Store, job: Job, looked_at: tuple[str, ...]) -> None:
    """Write down the choice, before anything that follows from it. Raises TryAgain where someone chose otherwise."""
    if not job.skip_existing:
        return
    content = RUN_IDS_TYPE_ADAPTER.dump_json(looked_at) + b"\n"
    if not store.create(EXISTING_RUNS_KEY, content) and store.read(EXISTING_RUNS_KEY) != content:
        raise TryAgain(f"{store.uri}: is being planned by someone else too. Run the command again.")
    if job.unconditional_writes == "refuse":
        require_conditional_writes(store, EXISTING_RUNS_KEY, content)


IDS_PER_BUCKET = 2**21
READERS = 4
NUMBER_SCHEMA = pa.schema([pa.field("number", pa.int64())])


def create_existing_table(database: Database, folder: Path, runs: Sequence[str]) -> None:
    """From `once`, make the table `existing` of what the runs at these URIs hold, and the view `planned` of the rest.

    Raises BadInput where a run has no index that can be read, TryAgain where storage fails.
    """
    database.execute("CREATE TABLE existing (number BIGINT)")
    if runs:
        path = folder / "existing.arrow"
        # By way of the disk: DuckDB would pass on what storage raises as a text only.
        write_arrow_file(
            path,
            _iter_existing_numbers(
                _bucket_ids(database, folder / "wanted"), [open_store(uri) for uri in runs]
            ),
        )
        database.register("held", arrow_stream_reader(path, NUMBER_SCHEMA.names))
        database.execute("INSERT INTO existing FROM held")
    database.execute("CREATE VIEW planned AS SELECT * FROM once ANTI JOIN existing USING (number)")


def _bucket_ids(database: Database, folder: Path) -> IdBuckets:
    """The ids that are to be made, each with the image's number."""
    folder.mkdir()
    (count,) = database.fetch_table("SELECT count(*) AS images FROM once")["images"].to_pylist()
    buckets = IdBuckets(folder, max(1, -(-count // IDS_PER_BUCKET)), NUMBERED_ID_DTYPE)
    for batch in database.fetch_batches("SELECT unhex(image_id) AS id, number FROM once"):
        records = np.empty(len(batch), NUMBERED_ID_DTYPE)
        records["id"], records["number"] = ids_from_bytes(batch["id"]), batch["number"].to_numpy()
        buckets.add(records)
    return buckets


def _iter_existing_numbers(wanted: IdBuckets, runs: list[Store]) -> Iterator[pa.RecordBatch]:
    """The numbers of the images that are held, a batch for each bucket."""
    indexes = _RunIndexes(runs)
    for bucket in range(wanted.count):
        held = _match_numbers(
            wanted.read(bucket), indexes.iter_overlapping_chunks(bucket, wanted.count)
        )
        yield pa.RecordBatch.from_arrays([pa.array(held)], schema=NUMBER_SCHEMA)


def _match_numbers(wanted: RecordArray, pieces: Iterator[IdArray]) -> npt.NDArray[np.int64]:
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


def _first_halves(ids: IdArray) -> npt.NDArray[np.uint64]:
    """The first eight bytes of each id as a number: in the same order."""
    return ids.view(">u8")[::2].astype(np.uint64)


class _RunIndexes:
    """The indexes of some runs, whose first pieces tell how many there are."""

    def __init__(self, runs: list[Store]) -> None:
        self._runs = runs
        self._sizes: list[int] = []

    def iter_overlapping_chunks(self, bucket: int, count: int) -> Iterator[IdArray]:
        """Every piece that shares ids with one of `count` ranges; of each run the first, where none was read yet."""
        fresh = not self._sizes
        for ids, size in (
            map_ordered(self._read_first_chunk, len(self._runs), READERS) if fresh else ()
        ):
            self._sizes.append(size)
            yield ids
        places = [
            (run, piece)
            for run, size in enumerate(self._sizes)
            for piece in overlapping_buckets(bucket, count, size)
            if not (fresh and piece == 0)
        ]
        for ids, _ in map_ordered(
            lambda place: self._read_chunk(*places[place]), len(places), READERS
        ):
            yield ids

    def _read_first_chunk(self, run: int) -> tuple[IdArray, int]:
        return self._read_chunk(run, 0)

    def _read_chunk(self, run: int, piece: int) -> tuple[IdArray, int]:
        return read_index_chunk(self._runs[run], piece)
