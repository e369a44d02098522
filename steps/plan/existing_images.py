"""Planned images that earlier runs hold, found by image_id, one range of ids after the other.

Neither side fits in memory: new ids are distributed over files on this disk, and of each run's
index the chunks of one range are read and matched.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps.job.job import Job
from imagekiln.steps.plan import catalog_sql as sql
from imagekiln.steps.runs.commits import Head, read_head
from imagekiln.steps.runs.image_id_index import (
    NUMBERED_ID_DTYPE,
    IdArray,
    IdBuckets,
    RecordArray,
    ids_from_bytes,
    overlapping_buckets,
    read_index_chunk,
)
from imagekiln.steps.runs.registry import find_finished_runs
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import Database, arrow_stream_reader, write_arrow_file
from imagekiln.steps.storage.store import Store

IDS_PER_BUCKET = 2**21
READERS = 4  # of chunks, which have megabytes
HEAD_READERS = 16
NUMBER_SCHEMA = pa.schema([pa.field("number", pa.int64())])


def successful_runs(job: Job, run_id: str | None = None) -> tuple[str, ...]:
    """The ids of other successful runs, oldest first, if the job skips existing images."""
    if not job.skip_existing:
        return ()
    entries = find_finished_runs(job.output)
    return tuple(entry.run_id for entry in entries if entry.run_id != run_id)


def create_existing_table(
    database: Database, folder: Path, runs: Sequence[str], ids_per_bucket: int = IDS_PER_BUCKET
) -> None:
    """Fill the table `existing` with the numbers of images that one of the runs holds.

    The view `planned_images` has the others. Raises BadInput for a run without a readable index,
    TryAgain.
    """
    database.execute(sql.EXISTING)
    if runs:
        path = folder / "existing.arrow"
        buckets = _bucket_ids(database, folder / "wanted", ids_per_bucket)
        # By way of the disk: DuckDB would pass on what storage raises as text only.
        write_arrow_file(path, _iter_existing_numbers(buckets, [open_store(uri) for uri in runs]))
        database.register("existing_numbers", arrow_stream_reader(path, NUMBER_SCHEMA.names))
        database.execute("INSERT INTO existing FROM existing_numbers")
    database.execute(sql.PLANNED_IMAGES)


def _bucket_ids(database: Database, folder: Path, ids_per_bucket: int) -> IdBuckets:
    (count,) = database.fetch_table("SELECT count(*) FROM unique_images").columns[0].to_pylist()
    buckets = IdBuckets(
        folder,
        max(1, -(-count // ids_per_bucket)),
        NUMBERED_ID_DTYPE,
    )
    for batch in database.fetch_batches("SELECT unhex(image_id) AS id, number FROM unique_images"):
        records = np.empty(len(batch), NUMBERED_ID_DTYPE)
        records["id"] = ids_from_bytes(batch["id"])
        records["number"] = batch["number"].to_numpy()
        buckets.add(records)
    return buckets


def _iter_existing_numbers(buckets: IdBuckets, runs: list[Store]) -> Iterator[pa.RecordBatch]:
    heads = list(map_ordered(lambda run: read_head(runs[run]), len(runs), HEAD_READERS))
    for bucket in range(buckets.count):
        chunks = _iter_overlapping_chunks(runs, heads, bucket, buckets.count)
        records = buckets.read(bucket)
        numbers = _match_numbers(records, chunks)
        column = pa.array(numbers)
        yield pa.RecordBatch.from_arrays([column], schema=NUMBER_SCHEMA)


def _iter_overlapping_chunks(
    runs: list[Store], heads: list[Head], bucket: int, count: int
) -> Iterator[IdArray]:
    """The chunks of the runs' indexes that share ids with one of `count` ranges."""
    places = [
        (store, head.commit.image_ids, chunk)
        for store, head in zip(runs, heads, strict=True)
        for chunk in overlapping_buckets(bucket, count, len(head.commit.image_ids) or 1)
    ]
    chunks = map_ordered(
        lambda place: read_index_chunk(*places[place]),
        len(places),
        READERS,
    )
    for ids, _ in chunks:
        yield ids


def _match_numbers(records: RecordArray, chunks: Iterator[IdArray]) -> npt.NDArray[np.int64]:
    """The numbers of the records, sorted by id, whose id is in a chunk."""
    ids = np.ascontiguousarray(records["id"])
    halves = _first_halves(ids)
    is_held = np.zeros(len(ids), np.bool_)
    last = len(ids) - 1
    for chunk in chunks if len(ids) else ():
        # Integers are found in a fifth of the time that texts take, so they exclude most ids.
        chunk_halves = _first_halves(chunk)
        nearest = np.searchsorted(halves, chunk_halves).clip(max=last)
        may_be_held = halves[nearest] == chunk_halves
        candidates = chunk[may_be_held]
        nearest = np.searchsorted(ids, candidates).clip(max=last)
        is_found = ids[nearest] == candidates
        held = nearest[is_found]
        is_held[held] = True
    numbers: npt.NDArray[np.int64] = records["number"][is_held]
    return numbers


def _first_halves(ids: IdArray) -> npt.NDArray[np.uint64]:
    return ids.view(">u8")[::2].astype(np.uint64)
