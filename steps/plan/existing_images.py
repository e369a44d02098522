"""The planned images that earlier runs hold, found by image_id.

DuckDB joins the new ids with those of the runs' indexes, in bounded memory.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan import catalog_sql as sql
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.image_id_index import read_index_chunk
from imagekiln.steps.runs.registry import find_finished_runs
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

READERS = 4  # of chunks, which have megabytes
HEAD_READERS = 16


def successful_runs(job: Job, run_id: str | None = None) -> tuple[str, ...]:
    """The ids of other successful runs, oldest first, if the job skips existing images."""
    if not job.skip_existing:
        return ()
    entries = find_finished_runs(job.output)
    return tuple(entry.run_id for entry in entries if entry.run_id != run_id)


def create_existing_table(database: Database, runs: Sequence[str]) -> None:
    """Fill the table `existing` with the numbers of images that one of the runs holds.

    The view `planned_images` has the others. Raises BadInput for a run without a readable index,
    TryAgain.
    """
    database.execute(sql.HELD)
    for chunk in _iter_chunks([open_store(uri) for uri in runs]):
        database.insert(sql.INSERT_HELD, "chunk", chunk)
    database.execute(sql.EXISTING)
    database.execute("DROP TABLE held")
    database.execute(sql.PLANNED_IMAGES)


def _iter_chunks(runs: Sequence[Store]) -> Iterator[pa.Table]:
    """Every chunk of the runs' indexes."""
    heads = map_ordered(lambda run: read_head(runs[run]), len(runs), HEAD_READERS)
    chunks = []
    for store, head in zip(runs, heads, strict=True):
        if not head.commit.image_ids:
            raise BadInput(
                f"{store.uri}: has no image index, so it is unknown which images it holds. "
                "Aggregate the run again."
            )
        chunks += [(store, key) for key in head.commit.image_ids]
    return map_ordered(lambda chunk: read_index_chunk(*chunks[chunk]), len(chunks), READERS)
