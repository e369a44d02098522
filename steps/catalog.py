"""The images of a run, worked out from the prompt rows: judged, seeded, named, deduplicated, ordered.

DuckDB does it, in bounded memory, whatever the number of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from imagekiln.steps import repeats
from imagekiln.steps.database import Database
from imagekiln.steps.errors import KilnError
from imagekiln.steps.grouping import by_group
from imagekiln.steps.identity import image_id_sql, seed_sql
from imagekiln.steps.job import Job
from imagekiln.steps.rules import LARGEST_SEED, MOST_IMAGES, SAME_ID, Rule, first_broken_sql

SHAPE = "width, height, steps, guidance, sampler"  # what all images of one batch must have in common
SHAPE_NAME = f"concat_ws('|', {SHAPE})"


@dataclass(frozen=True, slots=True)
class Group:
    """Images of one shape: what a batch may hold together. `truncated` of them have a prompt that the model cuts."""

    width: int
    height: int
    steps: int
    guidance: float
    sampler: str
    images: int
    truncated: int = 0


class Catalog:
    """The images of one plan. Fill it once, then ask.

    `groups` are the shapes in the plan, in the order in which they are made: that of their first row.
    """

    def __init__(self, folder: Path, job: Job, rules: tuple[Rule, ...], carried: int) -> None:
        """Open an empty catalog that spills into `folder`, which should have room for every image's texts."""
        self._database = Database(folder)
        self._job = job
        self._rules = rules
        self._carried = "".join(f", carry_{place}" for place in range(carried))
        self.groups: tuple[Group, ...] = ()
        self._shape_names: list[str] = []
        self._folder = folder

    def close(self) -> None:
        """Let go of memory and disk."""
        self._database.close()

    def fill(
        self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], model_key: str, size: tuple[int, int]
    ) -> None:
        """Take every prompt row, and work out its images. A KilnError of `batches` comes out as it is."""
        failure: list[KilnError] = []
        rows = pa.RecordBatchReader.from_batches(schema, _remembering(batches, failure))
        try:
            self._database.take(rows, self._fill_sql(model_key, size))
        except Exception:
            if failure:
                raise failure[0] from None
            raise
        repeats.mark(self._database)
        self._find_groups()

    def _fill_sql(self, model_key: str, size: tuple[int, int]) -> str:
        given = self._job.defaults
        negative = _quoted(given.negative_prompt)
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

    def rejected(self) -> pa.Table:
        """Every refused row: `row`, `column`, `reason`, in the order of the input."""
        labels = " UNION ALL ".join(f"SELECT {place}, '{rule.column}', '{_quoted(rule.reason)}'"
                                    for place, rule in enumerate(self._rules))  # fmt: skip
        return self._database.table(f"""
            SELECT row, "column", reason FROM images JOIN ({labels}) label(rule, "column", reason) USING (rule)
            UNION ALL SELECT DISTINCT row, '{SAME_ID.column}', '{SAME_ID.reason}' FROM same_id ORDER BY row""")

    def duplicates(self) -> pa.Table:
        """Every image that is made under an earlier row: `row`, `image_index`, `image_id`, `first_row`."""
        return self._database.table("SELECT * EXCLUDE (place) FROM duplicates ORDER BY row, image_index")

    def images(self) -> Iterator[pa.RecordBatch]:
        """Every planned image in the order of groups and rows, as a stream."""
        several = len(self.groups) > 1
        found = self._database.stream(f"""
            SELECT rowid AS place, image_id, id, image_index, row, prompt, negative_prompt, seed, {SHAPE}, truncated
                   {self._carried} {f", {SHAPE_NAME} AS shape" if several else ""}
            FROM images WHERE rule IS NULL""")
        planned = repeats.without(self._database, _in_order(found))
        if not several:
            return planned
        sizes = {name: group.images for name, group in zip(self._shape_names, self.groups, strict=True)}
        return by_group(planned, "shape", sizes, self._folder)

    def _find_groups(self) -> None:
        found = self._database.table(f"""
            SELECT {SHAPE_NAME} AS shape, {SHAPE}, count(*) AS images, count(*) FILTER (truncated) AS truncated
            FROM planned GROUP BY {SHAPE} ORDER BY min(row)""")
        self._shape_names = found["shape"].to_pylist()
        self.groups = tuple(Group(**group) for group in found.drop_columns(["shape"]).to_pylist())


def _in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches as they are, in the order of insertion, which DuckDB promises to keep: this makes sure."""
    last = -1
    for batch in batches:
        keys = batch["row"].to_numpy() * MOST_IMAGES + batch["image_index"].to_numpy()
        if (np.diff(keys, prepend=last) <= 0).any():
            raise RuntimeError("the catalog gives its images in another order than they were put in")
        yield batch
        last = keys[-1]


def _remembering(batches: Iterator[pa.RecordBatch], failure: list[KilnError]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except KilnError as error:
        failure.append(error)
        raise


def _quoted(text: str) -> str:
    return text.replace("'", "''")
