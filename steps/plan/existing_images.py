"""The planned images that earlier runs hold, found by image_id.

DuckDB joins the new ids with those of the runs' indexes, in bounded memory.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import MAX_IMAGES_PER_ROW
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.image_id_index import read_index_chunk
from imagekiln.steps.runs.registry import find_finished_runs
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

READERS = 4  # of chunks, which have megabytes
HEAD_READERS = 16
NEAR_SEED = "is so near that of the same prompt that they share some candidates"
INSERT_HELD = "INSERT INTO held SELECT CAST(hex(image_id) AS UUID) FROM chunk"
FIND_EXISTING = """
    INSERT INTO existing
    SELECT number FROM unique_images WHERE CAST(image_id AS UUID) IN (FROM held)"""


def successful_runs(job: Job, run_id: str | None = None) -> tuple[str, ...]:
    """The ids of the successful runs under the job's output but `run_id`, oldest first.

    None if the job does not skip existing images.
    """
    if not job.skip_existing:
        return ()
    entries = find_finished_runs(job.output)
    return tuple(entry.run_id for entry in entries if entry.run_id != run_id)


def create_existing_table(database: Database, runs: Sequence[str]) -> None:
    """Split `unique_images` by whether one of the runs at these URIs holds the image.

    The table `existing` has the numbers of those that are held, the view `planned_images` has the
    others. Raises BadInput for a run without a readable index, TryAgain.
    """
    database.execute("CREATE TABLE existing (number BIGINT)")
    if runs:
        database.execute("CREATE TABLE held (id UUID)")
        for chunk in _iter_chunks([open_store(uri) for uri in runs]):
            database.insert(INSERT_HELD, "chunk", chunk)
        database.execute(FIND_EXISTING)
        database.execute("DROP TABLE held")
    database.execute(
        "CREATE VIEW planned_images AS "
        "SELECT * FROM unique_images ANTI JOIN existing USING (number)"
    )


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


def candidate_group_sql(candidates: int) -> str:
    """The number of the first candidate of each image's group, by the image's own `number`."""
    return f"number - number % {MAX_IMAGES_PER_ROW} % {candidates}"


def count_split_groups(database: Database, candidates: int) -> pa.Table:
    """The rows of which others make some candidates, as `Catalog.count_rejections` has them."""
    return database.fetch_table(
        f"""
        WITH split AS (
            SELECT min(number) // {MAX_IMAGES_PER_ROW} AS row FROM planned_images
            GROUP BY {candidate_group_sql(candidates)} HAVING count(*) <> {candidates})
        SELECT 'seed' AS "column", '{NEAR_SEED}' AS reason, count(DISTINCT row) AS rows,
               min(row) AS row
        FROM split HAVING count(*) > 0
        """
    )


def plan_whole_groups(database: Database, candidates: int) -> None:
    """Omit all candidates of which one exists.

    `existing` and `planned_images` are the tables of a catalog.
    """
    group = candidate_group_sql(candidates)
    database.execute(
        f"""
        INSERT INTO existing
        SELECT number FROM planned_images WHERE {group} IN (SELECT {group} FROM existing)
        """
    )
