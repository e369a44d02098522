"""The images of a run, worked out from the prompt rows: judged, seeded, named, deduplicated, ordered.

DuckDB does it, in a file on this disk and in bounded memory, whatever the number of rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.identity import image_id_sql, seed_sql
from imagekiln.steps.job import Job
from imagekiln.steps.rules import LARGEST_SEED, SAME_ID, Rule, first_broken_sql

MEMORY = "384MiB"
STREAM_ROWS = 65_536
SHAPE = "width, height, steps, guidance, sampler"  # what all images of one batch must have in common


@dataclass(frozen=True, slots=True)
class Group:
    """Images of one shape: what a batch may hold together."""

    width: int
    height: int
    steps: int
    guidance: float
    sampler: str
    images: int


class Catalog:
    """The images of one plan. Fill it once, then ask."""

    def __init__(self, folder: Path, job: Job, rules: tuple[Rule, ...], carried: int) -> None:
        """Open an empty catalog in `folder`, which should have room for twice the input."""
        self._database = duckdb.connect(
            folder / "catalog.duckdb",
            config={
                "memory_limit": MEMORY,
                "temp_directory": str(folder / "spill"),
                "autoload_known_extensions": False,
            },
        )
        self._job = job
        self._rules = rules
        self._carried = "".join(f", carry_{place}" for place in range(carried))

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def fill(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], model_key: str, size: tuple[int, int]) -> None:
        """Take every prompt row, and work out its images. A KilnError of `batches` comes out as it is."""
        failure: list[KilnError] = []
        reader = pa.RecordBatchReader.from_batches(schema, _remembering(batches, failure))
        self._database.register("input", reader)
        try:
            self._run(self._fill_sql(model_key, size))
        except Exception:
            if failure:
                raise failure[0] from None
            raise
        finally:
            self._database.unregister("input")
        self._mark_same_id()
        self._mark_duplicates()
        self._run("""
            CREATE VIEW planned AS SELECT * FROM images
            WHERE rule IS NULL AND row NOT IN (SELECT row FROM same_id)
              AND (row, image_index) NOT IN (SELECT (row, image_index) FROM duplicates)""")

    def _fill_sql(self, model_key: str, size: tuple[int, int]) -> str:
        given = self._job.defaults
        negative = given.negative_prompt.replace("'", "''")
        return f"""
            CREATE TABLE images AS
            WITH filled AS (
                SELECT row, wrong, truncated, id, prompt,
                       CASE WHEN seed > {LARGEST_SEED} THEN {LARGEST_SEED + 1} ELSE seed END AS row_seed,
                       coalesce(negative_prompt, '{negative}') AS negative_prompt,
                       coalesce(width, {size[0]}) AS width, coalesce(height, {size[1]}) AS height,
                       coalesce(steps, {given.steps}) AS steps,
                       coalesce(guidance, CAST({given.guidance} AS DOUBLE)) AS guidance,
                       coalesce(sampler, '{given.sampler}') AS sampler,
                       coalesce(images, {given.images_per_prompt}) AS images {self._carried}
                FROM input),
            judged AS (SELECT *, {first_broken_sql(self._rules)} AS rule FROM filled),
            spread AS (
                SELECT *, unnest(range(CASE WHEN rule IS NULL THEN images ELSE 1 END)) AS image_index,
                       CASE WHEN id IS NOT NULL
                            THEN hash(prompt, negative_prompt, row_seed, {SHAPE}, images) END AS content
                FROM judged),
            seeded AS (SELECT *, {seed_sql(given.seed)} AS seed FROM spread)
            SELECT row, image_index, {image_id_sql(model_key)} AS image_id, id, prompt, negative_prompt, seed,
                   {SHAPE}, truncated, rule, content {self._carried}
            FROM seeded"""

    def _mark_same_id(self) -> None:
        """Set apart the rows whose id an earlier row has with other content."""
        self._run("""
            CREATE TABLE same_id AS
            WITH repeated AS (
                SELECT id, min(row) AS first FROM images
                WHERE rule IS NULL AND id IS NOT NULL GROUP BY id HAVING count(DISTINCT content) > 1),
            first AS (SELECT DISTINCT repeated.id, content FROM repeated JOIN images ON row = first)
            SELECT DISTINCT row FROM images JOIN first USING (id)
            WHERE rule IS NULL AND images.content <> first.content""")

    def _mark_duplicates(self) -> None:
        """Set apart the images that an earlier row already has, found by a narrow hash and settled by image_id."""
        self._run("""
            CREATE TABLE duplicates AS
            WITH sound AS (
                SELECT row, image_index, image_id FROM images
                WHERE rule IS NULL AND row NOT IN (SELECT row FROM same_id)),
            suspects AS (SELECT hash(image_id) AS mark FROM sound GROUP BY mark HAVING count(*) > 1),
            ranked AS (
                SELECT row, image_index, image_id,
                       first_value(row) OVER same AS first_row, row_number() OVER same AS place
                FROM sound WHERE hash(image_id) IN (SELECT mark FROM suspects)
                WINDOW same AS (PARTITION BY image_id ORDER BY row, image_index))
            SELECT row, image_index, image_id, first_row FROM ranked WHERE place > 1""")

    def rejected(self) -> pa.Table:
        """Every refused row: `row`, `column`, `reason`, in the order of the input."""
        labels = " UNION ALL ".join(f"SELECT {place}, '{rule.column}', '{_quoted(rule.reason)}'"
                                    for place, rule in enumerate(self._rules))  # fmt: skip
        return self._table(f"""
            SELECT row, "column", reason FROM images JOIN ({labels}) label(rule, "column", reason) USING (rule)
            UNION ALL SELECT row, '{SAME_ID.column}', '{SAME_ID.reason}' FROM same_id ORDER BY row""")

    def duplicates(self) -> pa.Table:
        """Every image that is made under an earlier row: `row`, `image_index`, `image_id`, `first_row`."""
        return self._table("SELECT * FROM duplicates ORDER BY row, image_index")

    def truncated(self) -> int:
        """How many images have a prompt that the model will cut."""
        return int(self._ask("SELECT count(*) FROM planned WHERE truncated").fetchall()[0][0])

    def groups(self) -> tuple[Group, ...]:
        """The shapes in the plan, in the order in which they are made: that of their first row."""
        found = self._ask(f"SELECT {SHAPE}, count(*) FROM planned GROUP BY {SHAPE} ORDER BY min(row), {SHAPE}")
        return tuple(Group(*row) for row in found.fetchall())

    def images(self) -> pa.RecordBatchReader:
        """Every planned image in the order of groups and rows, as a stream."""
        return self._ask(f"""
            WITH shapes AS (SELECT {SHAPE}, min(row) AS shape_row FROM planned GROUP BY {SHAPE})
            SELECT image_id, id, image_index, row, prompt, negative_prompt, seed, {SHAPE}, truncated {self._carried}
            FROM planned JOIN shapes USING ({SHAPE})
            ORDER BY shape_row, {SHAPE}, row, image_index""").to_arrow_reader(STREAM_ROWS)

    def _table(self, sql: str) -> pa.Table:
        return self._ask(sql).to_arrow_table()

    def _ask(self, sql: str) -> duckdb.DuckDBPyRelation:
        with _told():
            return self._database.sql(sql)

    def _run(self, sql: str) -> None:
        with _told():
            self._database.execute(sql)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise TryAgain(f"planning ran out of disk or memory ({str(error).splitlines()[0]}). Free some.") from error


def _remembering(batches: Iterator[pa.RecordBatch], failure: list[KilnError]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except KilnError as error:
        failure.append(error)
        raise


def _quoted(text: str) -> str:
    return text.replace("'", "''")
