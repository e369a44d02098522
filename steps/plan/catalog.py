"""The images of a run, worked out from the prompt rows: judged, seeded, named, deduplicated, ordered.

DuckDB does it, in bounded memory, whatever the number of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.existing_images import create_existing_table
from imagekiln.steps.plan.image_sql import (
    SHAPE_COLUMNS,
    create_duplicate_tables,
    images_sql,
    quote_literal,
)
from imagekiln.steps.plan.ordering import SortedStream, order_by_group
from imagekiln.steps.plan.rules import SAME_ID_RULE, RejectionRule
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA
from imagekiln.steps.storage.scratch import (
    Database,
    arrow_stream_reader,
    read_arrow_batches,
    write_arrow_file,
)

MAX_SHAPES = 10_000
INPUT_IMAGE_SET_COLUMN = "input_images"  # of a group, and in no object
# What SQL needs to know of an image. Its texts stay where they are.
NARROW_COLUMNS = (
    "number",
    "row",
    "image_index",
    "image_id",
    "id",
    "content",
    "rule",
    "truncated",
    *SHAPE_COLUMNS,
)


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """Images of one shape: what a batch may hold together. `truncated` of them have a prompt that the model cuts.

    `pictures` are the columns of pictures that are not null, joined by commas; None where there are none.
    """

    width: int
    height: int
    steps: int
    guidance: float
    sampler: str
    images: int
    truncated: int = 0
    loras: str | None = None
    strength: float | None = None
    input_images: str | None = None


class Catalog:
    """The images of one plan. Fill it once, then ask.

    `groups` are the shapes in the plan, in the order in which they are made: that of their first row.
    """

    def __init__(
        self, folder: Path, job: Job, rules: tuple[RejectionRule, ...], carried: int
    ) -> None:
        """Open an empty catalog in `folder`, which should have room for every image's texts, twice."""
        self._database = Database(folder)
        self._folder = folder
        self._file = folder / "images.arrow"
        self._job = job
        self._rules = rules
        self._carried = tuple(f"carry_{place}" for place in range(carried))
        self.groups: tuple[ImageGroup, ...] = ()

    def close(self) -> None:
        """Let go of memory and disk."""
        self._database.close()

    def fill(
        self,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        model_key: str,
        size: tuple[int, int],
        runs: Sequence[str] = (),
    ) -> None:
        """Take every prompt row, and work out its images. What `batches` raises comes out as it is.

        Images that a run at one of the URIs `runs` holds are left out. Raises BadInput, TryAgain.
        """
        failure: list[Exception] = []
        rows = pa.RecordBatchReader.from_batches(schema, _capture_errors(batches, failure))
        self._database.register("input", rows)
        sql = images_sql(self._job, self._rules, model_key, size, self._carried)
        try:
            write_arrow_file(self._file, _assert_sorted(self._database.fetch_batches(sql)))
        except Exception:
            if failure:
                raise failure[0] from None
            raise
        self._database.register("spooled", arrow_stream_reader(self._file, NARROW_COLUMNS))
        self._database.execute("CREATE TABLE images AS FROM spooled")
        create_duplicate_tables(self._database)
        create_existing_table(self._database, self._folder, runs)
        self._find_groups()

    def rejected_row_count(self) -> int:
        """How many rows are refused."""
        return self._count("""
            SELECT (SELECT count(*) FROM images WHERE rule IS NOT NULL) + (SELECT count(DISTINCT row) FROM same_id)""")

    def duplicate_count(self) -> int:
        """How many images are made under an earlier row."""
        return self._count("SELECT count(*) FROM duplicates")

    def existing_count(self) -> int:
        """How many images an earlier run holds."""
        return self._count("SELECT count(*) FROM existing")

    def iter_rejected(self, most: int | None = None) -> Iterator[pa.RecordBatch]:
        """The refused rows, or the first so many: `row`, `column`, `reason`, in the order of the input."""
        limit = "" if most is None else f"LIMIT {most}"
        labels = " UNION ALL ".join(f"SELECT {place}, '{rule.column}', {quote_literal(rule.reason)}"
                                    for place, rule in enumerate(self._rules))  # fmt: skip
        return self._database.fetch_batches(f"""
            SELECT row, "column", reason FROM images JOIN ({labels}) label(rule, "column", reason) USING (rule)
            UNION ALL SELECT DISTINCT row, '{SAME_ID_RULE.column}', '{SAME_ID_RULE.reason}' FROM same_id ORDER BY row {limit}""")

    def iter_duplicates(self) -> Iterator[pa.RecordBatch]:
        """Every image that is made under an earlier row: `row`, `image_index`, `image_id`, `first_row`."""
        # Sorted as numbers: as texts, many of them would not fit.
        return self._database.fetch_batches("""
            SELECT row, image_index, replace(CAST(name AS VARCHAR), '-', '') AS image_id, first_row
            FROM (SELECT * FROM duplicates ORDER BY number)""")

    def iter_images(self) -> Iterator[pa.RecordBatch]:
        """Every planned image in the order of groups and rows, as a stream."""
        planned = self._iter_planned()
        if len(self.groups) > 1:
            sizes = {
                tuple(getattr(group, name) for name in SHAPE_COLUMNS): group.images
                for group in self.groups
            }
            planned = order_by_group(planned, SHAPE_COLUMNS, sizes, self._folder)
        return (batch.drop_columns([INPUT_IMAGE_SET_COLUMN]) for batch in planned)

    def _iter_planned(self) -> Iterator[pa.RecordBatch]:
        """Every planned image in the order of rows. No join does it: that would lose the order."""
        left_out = SortedStream(
            self._database.fetch_batches("""
            SELECT number FROM images WHERE rule IS NOT NULL UNION ALL SELECT number FROM same_id
            UNION ALL SELECT number FROM duplicates UNION ALL SELECT number FROM existing ORDER BY number""")
        )
        for batch in read_arrow_batches(self._file):
            kept = pa.array(~left_out.contains(batch["number"].to_numpy()))
            yield batch.select(
                [*IMAGE_ROW_SCHEMA.names, *self._carried, INPUT_IMAGE_SET_COLUMN]
            ).filter(kept)

    def _find_groups(self) -> None:
        shape = ", ".join(SHAPE_COLUMNS)
        self._database.execute(f"""
            CREATE TABLE shapes AS
            SELECT {shape}, count(*) AS images, count(*) FILTER (truncated) AS truncated, min(row) AS first_row
            FROM planned GROUP BY {shape}""")
        shapes = self._count("SELECT count(*) FROM shapes")
        if shapes > MAX_SHAPES:
            raise BadInput(
                f"the rows have {shapes} combinations of width, height, steps, guidance, sampler and the "
                f"like; at most {MAX_SHAPES} fit, since images of different ones share no batch. Round the values."
            )
        found = self._database.fetch_table(
            "SELECT * EXCLUDE (first_row) FROM shapes ORDER BY first_row"
        )
        self.groups = tuple(ImageGroup(**group) for group in found.to_pylist())

    def _count(self, sql: str) -> int:
        (count,) = self._database.fetch_table(sql).to_pydict().values()
        return int(count[0])


def _assert_sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches as they are: in the order of the input, which DuckDB promises to keep, and this makes sure."""
    last = -1
    for batch in batches:
        numbers = batch["number"].to_numpy()
        if (np.diff(numbers, prepend=last) <= 0).any():
            raise RuntimeError("the images came in another order than the prompt rows")
        yield batch
        last = numbers[-1]


def _capture_errors(
    batches: Iterator[pa.RecordBatch], failure: list[Exception]
) -> Iterator[pa.RecordBatch]:
    # DuckDB passes on what its input raises as a text only.
    try:
        yield from batches
    except Exception as error:
        failure.append(error)
        raise
