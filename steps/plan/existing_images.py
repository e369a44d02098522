"""The planned images that earlier runs hold, found by image_id.

DuckDB joins the new ids with those of the runs' manifests, in bounded memory.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from imagekiln.steps.job.job import Job
from imagekiln.steps.plan import catalog_sql as sql
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.manifest import read_held_ids
from imagekiln.steps.runs.registry import find_finished_runs
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

READERS = 16
INSERT_HELD = "INSERT INTO held SELECT CAST(image_id AS UUID) FROM manifest"
FIND_EXISTING = """
    INSERT INTO existing
    SELECT number FROM unique_images WHERE CAST(image_id AS UUID) IN (FROM held)"""


def successful_runs(job: Job, run_id: str | None = None) -> tuple[str, ...]:
    """The ids of other successful runs, oldest first, if the job skips existing images."""
    if not job.skip_existing:
        return ()
    entries = find_finished_runs(job.output)
    return tuple(entry.run_id for entry in entries if entry.run_id != run_id)


def create_existing_table(database: Database, runs: Sequence[str]) -> None:
    """Fill the table `existing` with the numbers of images that one of the runs holds.

    The view `planned_images` has the others. Raises BadInput for a run that is damaged, TryAgain.
    """
    database.execute(sql.EXISTING)
    if runs:
        database.execute("CREATE TABLE held (id UUID)")
        for ids in _iter_held_ids([open_store(uri) for uri in runs]):
            database.insert(INSERT_HELD, "manifest", ids)
        database.execute(FIND_EXISTING)
        database.execute("DROP TABLE held")
    database.execute(sql.PLANNED_IMAGES)


def _iter_held_ids(runs: Sequence[Store]) -> Iterator[pa.Table]:
    """The ids of images that the runs hold, manifest by manifest."""
    heads = map_ordered(lambda run: read_head(runs[run]), len(runs), READERS)
    manifests = [
        (store, key)
        for store, head in zip(runs, heads, strict=True)
        for key in head.commit.manifests
    ]
    return map_ordered(lambda place: read_held_ids(*manifests[place]), len(manifests), READERS)
