"""The images of a plan, made from prompt rows: validated, seeded, named, deduplicated, counted.

DuckDB does it in bounded memory, whatever the number of rows. Its tables have what SQL needs of an
image; the texts stay in a file on this disk, in the order of the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import MAX_IMAGES_PER_ROW
from imagekiln.steps.plan.existing_images import create_existing_table, plan_whole_groups
from imagekiln.steps.plan.image_sql import INPUT_IMAGE_SET_COLUMN, SHAPE_COLUMNS, quote_literal
from imagekiln.steps.plan.ordering import Int64Array, SortedStream, order_by_group
from imagekiln.steps.plan.rules import SAME_ID_RULE, RejectionRule
from imagekiln.steps.runs.plan import PlanCounts
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA
from imagekiln.steps.storage.scratch import (
    Database,
    arrow_stream_reader,
    read_arrow_batches,
    write_arrow_file,
)

MAX_SHAPES = 10_000
HASHES_PER_RANGE = 2**22  # 32 MiB, sorted in memory at a time
# The columns of the table `images`: hashes in place of ids, which would take more memory.
NARROW_COLUMNS = (
    "number",
    "id_hash",
    "image_hash",
    "row_hash",
    "rule",
    "truncated",
    *SHAPE_COLUMNS,
)
# The hash of each row's id, once for all images of a row.
ID_HASHES_SQL = f"""
    SELECT id_hash AS hash FROM images
    WHERE rule IS NULL AND id_hash IS NOT NULL AND number % {MAX_IMAGES_PER_ROW} = 0"""
# The images of rows whose id may be that of a row with other content.
SAME_ID_SUSPECTS_SQL = """
    CREATE TABLE same_id_suspects AS
    WITH named AS (
        SELECT number, id_hash, row_hash FROM images
        WHERE rule IS NULL AND id_hash IN (FROM repeated_ids)),
    conflicting AS (
        SELECT id_hash FROM named GROUP BY id_hash HAVING min(row_hash) <> max(row_hash))
    SELECT number, row_hash FROM named WHERE id_hash IN (FROM conflicting)"""
# The images of rows whose id another row before them has, with other content.
SAME_ID_SQL = f"""
    CREATE TABLE same_id AS
    WITH suspects AS MATERIALIZED (
        SELECT number, id, row_hash FROM same_id_suspects JOIN suspect_texts USING (number)),
    first AS (
        SELECT id, arg_min(row_hash, number) AS row_hash, min(number) AS first_number
        FROM suspects GROUP BY id)
    SELECT number, number // {MAX_IMAGES_PER_ROW} AS row,
           first_number // {MAX_IMAGES_PER_ROW} AS first_row
    FROM suspects JOIN first USING (id)
    WHERE suspects.row_hash <> first.row_hash"""
VALID_IMAGES_SQL = """
    CREATE VIEW valid_images AS
    SELECT * FROM images ANTI JOIN same_id USING (number) WHERE rule IS NULL"""
IMAGE_HASHES_SQL = "SELECT image_hash AS hash FROM valid_images"
# The images that may have the image_id of another.
DUPLICATE_SUSPECTS_SQL = """
    CREATE TABLE duplicate_suspects AS
    SELECT number FROM valid_images WHERE image_hash IN (FROM repeated_images)"""
# The images that are made under an earlier row.
DUPLICATES_SQL = f"""
    CREATE TABLE duplicates AS
    WITH suspects AS MATERIALIZED (
        SELECT number, CAST(image_id AS UUID) AS name
        FROM duplicate_suspects JOIN suspect_texts USING (number)),
    first AS (SELECT name, min(number) AS first_number FROM suspects GROUP BY name)
    SELECT number, number // {MAX_IMAGES_PER_ROW} AS row,
           number % {MAX_IMAGES_PER_ROW} AS image_index,
           name, first_number // {MAX_IMAGES_PER_ROW} AS first_row
    FROM suspects JOIN first USING (name) WHERE number > first_number"""
UNIQUE_IMAGES_SQL = """
    CREATE VIEW unique_images AS SELECT * FROM valid_images ANTI JOIN duplicates USING (number)"""
SHAPES_SQL = f"""
    CREATE TABLE shapes AS
    SELECT {", ".join(SHAPE_COLUMNS)}, count(*) AS images,
           count(DISTINCT number // {MAX_IMAGES_PER_ROW}) FILTER (truncated) AS truncated,
           min(number) AS first_number
    FROM planned_images GROUP BY {", ".join(SHAPE_COLUMNS)}"""
REJECTED_ROW_COUNT_SQL = """
    SELECT (SELECT count(*) FROM images WHERE rule IS NOT NULL)
         + (SELECT count(DISTINCT row) FROM same_id)"""
OMITTED_NUMBERS_SQL = """
    SELECT number FROM images WHERE rule IS NOT NULL UNION ALL SELECT number FROM same_id
    UNION ALL SELECT number FROM duplicates UNION ALL SELECT number FROM existing ORDER BY number"""
# Sorted as numbers: as texts, many of them would not fit in memory.
DUPLICATE_ROWS_SQL = """
    SELECT row AS input_row, image_index,
           replace(CAST(name AS VARCHAR), '-', '') AS image_id, first_row
    FROM (SELECT * FROM duplicates ORDER BY number)"""


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """Images of one shape, which may share a batch. The model truncates `truncated` prompts.

    `input_images` are the names of the input images that each has, joined by commas. `pass_work` is
    what passes of diffusion take after an image was drawn, in pixels times steps.
    """

    width: int
    height: int
    steps: int
    guidance: float | None
    sampler: str
    images: int
    truncated: int = 0
    loras: str | None = None
    strength: float | None = None
    input_images: str | None = None
    pass_work: float = 0.0


@dataclass(frozen=True, slots=True)
class Catalog:
    """The images of a plan, counted, and readers of them while `database` is open.

    `groups` are in the order in which they are made: that of their first row. `database` has the
    tables `images`, `same_id`, `duplicates` and `existing`. `images_file` has every image of the
    former with its texts; `passthrough` are the names of its columns that are carried. So many
    `candidates`, neighbors by their numbers, compete for one place.
    """

    groups: tuple[ImageGroup, ...]
    counts: PlanCounts
    database: Database
    images_file: Path
    rules: tuple[RejectionRule, ...]
    passthrough: tuple[str, ...]
    candidates: int = 1

    def iter_rejected(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rejected rows, or the first of them: `row`, `column`, `reason`, in input order."""
        return self.database.fetch_batches(f"""
            {self._rejected_rows_sql()}
            ORDER BY row {"" if limit is None else f"LIMIT {limit}"}""")

    def count_rejections(self, limit: int) -> pa.Table:
        """The most frequent reasons why rows are rejected: `column`, `reason`, `rows`, `row`.

        The latter is the first such row.
        """
        return self.database.fetch_table(f"""
            SELECT "column", reason, count(*) AS rows, min(row) AS row
            FROM ({self._rejected_rows_sql()})
            GROUP BY ALL ORDER BY rows DESC, row, "column", reason LIMIT {limit}""")

    def earlier_row(self, row: int) -> int | None:
        """The row whose id this one repeats with other content, or that makes images of it."""
        sql = f"""
            FROM same_id SELECT min(first_row) WHERE row = {row}
            UNION ALL FROM duplicates SELECT min(first_row) WHERE row = {row} ORDER BY ALL"""
        (column,) = self.database.fetch_table(sql).columns
        earlier: int | None = column[0].as_py()
        return earlier

    def _rejected_rows_sql(self) -> str:
        labels = " UNION ALL ".join(
            f"SELECT {index}, '{rule.column}', {quote_literal(rule.reason)}"
            for index, rule in enumerate(self.rules)
        )
        return f"""
            SELECT number // {MAX_IMAGES_PER_ROW} AS row, "column", reason
            FROM images JOIN ({labels}) label(rule, "column", reason) USING (rule)
            UNION ALL
            SELECT DISTINCT row, '{SAME_ID_RULE.column}', '{SAME_ID_RULE.reason}' FROM same_id"""

    def iter_duplicates(self) -> Iterator[pa.RecordBatch]:
        """The images that are made under an earlier row, as DUPLICATE_SCHEMA."""
        return self.database.fetch_batches(DUPLICATE_ROWS_SQL)

    def iter_images(
        self, groups: Sequence[ImageGroup] | None = None, sampled: Int64Array | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Every planned image in the order of groups and rows, as a stream.

        Without those with the numbers in `sampled`, which rise; `groups` are then what is left.
        """
        groups = self.groups if groups is None else groups
        images = self._iter_planned(sampled)
        if len(groups) > 1:
            sizes = {
                tuple(getattr(group, name) for name in SHAPE_COLUMNS): group.images
                for group in groups
            }
            images = order_by_group(images, SHAPE_COLUMNS, sizes, self.images_file.parent)
        return (batch.drop_columns([INPUT_IMAGE_SET_COLUMN]) for batch in images)

    def iter_sampled(self, numbers: Int64Array) -> Iterator[pa.RecordBatch]:
        """The images with these numbers, which rise, in the order of rows."""
        return self.iter_columns([*IMAGE_ROW_SCHEMA.names, *self.passthrough], numbers)

    def iter_columns(self, columns: list[str], numbers: Int64Array) -> Iterator[pa.RecordBatch]:
        """Columns of the images with these numbers, which rise, in the order of rows."""
        for batch in read_arrow_batches(self.images_file):
            batch_numbers = batch["number"].to_numpy()
            is_sampled = np.isin(batch_numbers, numbers, assume_unique=True)
            if is_sampled.any():
                rows = batch.select(columns)
                yield rows.filter(pa.array(is_sampled))

    def _iter_planned(self, sampled: Int64Array | None = None) -> Iterator[pa.RecordBatch]:
        """Every planned image in the order of rows. Not by a join, which would lose the order."""
        omitted = SortedStream(self.database.fetch_batches(OMITTED_NUMBERS_SQL))
        columns = [*IMAGE_ROW_SCHEMA.names, *self.passthrough, INPUT_IMAGE_SET_COLUMN]
        for batch in read_arrow_batches(self.images_file):
            numbers = batch["number"].to_numpy()
            is_omitted = omitted.contains(numbers)
            if sampled is not None:
                is_omitted |= np.isin(numbers, sampled, assume_unique=True)
            planned = batch.select(columns)
            if is_omitted.any():
                is_planned = pa.array(~is_omitted)
                planned = planned.filter(is_planned)
            yield planned


def write_images(
    database: Database,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    images_sql: str,
    path: Path,
) -> None:
    """Make images of prompt rows by `images_sql`, which reads from `input`, and write them.

    What `batches` raises is raised as it is. Raises TryAgain.
    """
    errors: list[Exception] = []
    rows = pa.RecordBatchReader.from_batches(schema, _capture_errors(batches, errors))
    database.register("input", rows)
    try:
        write_arrow_file(path, _assert_sorted(database.fetch_batches(images_sql)))
    except Exception:
        if errors:
            raise errors[0] from None
        raise


def _capture_errors(
    batches: Iterator[pa.RecordBatch], errors: list[Exception]
) -> Iterator[pa.RecordBatch]:
    # DuckDB passes on what its input raises as text only.
    try:
        yield from batches
    except Exception as error:
        errors.append(error)
        raise


def _assert_sorted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches as they are, which DuckDB promises to keep in the order of the input."""
    last = -1
    for batch in batches:
        numbers = batch["number"].to_numpy()
        if (np.diff(numbers, prepend=last) <= 0).any():
            raise RuntimeError("the images came in another order than the prompt rows")
        yield batch
        last = numbers[-1]


def catalog_images(
    database: Database,
    images_file: Path,
    rules: tuple[RejectionRule, ...],
    passthrough: tuple[str, ...],
    existing_runs: Sequence[str] = (),
    candidates: int = 1,
) -> Catalog:
    """Find what of the images in `images_file` is to be made, and group it by shape.

    Images that a run at one of the URIs `existing_runs` holds are omitted. Where so many
    `candidates` compete, they are planned together: all of them or, where one exists, none.
    Raises BadInput, TryAgain.
    """
    # Earlier runs know images by their ids.
    columns = [*NARROW_COLUMNS, "image_id"] if existing_runs else NARROW_COLUMNS
    database.register("narrow_images", arrow_stream_reader(images_file, columns))
    database.execute("CREATE TABLE images AS FROM narrow_images")
    create_repeated_table(database, "repeated_ids", ID_HASHES_SQL)
    database.execute(SAME_ID_SUSPECTS_SQL)
    _register_texts(database, images_file, "id", "same_id_suspects")
    database.execute(SAME_ID_SQL)
    database.execute(VALID_IMAGES_SQL)
    create_repeated_table(database, "repeated_images", IMAGE_HASHES_SQL)
    database.execute(DUPLICATE_SUSPECTS_SQL)
    _register_texts(database, images_file, "image_id", "duplicate_suspects")
    database.execute(DUPLICATES_SQL)
    database.execute(UNIQUE_IMAGES_SQL)
    create_existing_table(database, existing_runs)
    if candidates > 1:
        plan_whole_groups(database, candidates)
    groups = _group_by_shape(database)
    return Catalog(
        groups=groups,
        counts=_count_images(database, groups),
        database=database,
        images_file=images_file,
        rules=rules,
        passthrough=passthrough,
        candidates=candidates,
    )


def create_repeated_table(
    database: Database, name: str, hashes_sql: str, hashes_per_range: int = HASHES_PER_RANGE
) -> None:
    """Create the table `name` of the hashes that the query gives more than once, as `hash`.

    NumPy sorts hashes in a tenth of the time in which DuckDB groups them, a range of them after the
    other in bounded memory.
    """
    database.execute(f"CREATE TABLE {name} (hash UBIGINT)")
    count = _fetch_count(database, f"SELECT count(*) FROM ({hashes_sql})")
    ranges = count // hashes_per_range + 1
    numbers = range(ranges + 1)
    bounds = [2**64 * number // ranges for number in numbers]
    for low, high in pairwise(bounds):
        hashes = _fetch_sorted_hashes(database, hashes_sql, low, high)
        later = hashes[1:]
        repeated = later[later == hashes[:-1]]
        rows = pa.table({"hash": repeated})
        reader = rows.to_reader()
        database.register("repeated_hashes", reader)
        database.execute(f"INSERT INTO {name} FROM repeated_hashes")


def _fetch_sorted_hashes(
    database: Database, hashes_sql: str, low: int, high: int
) -> npt.NDArray[np.uint64]:
    """The hashes that the query gives from `low` on and below `high`."""
    batches = database.fetch_batches(
        f"""
        SELECT hash FROM ({hashes_sql})
        WHERE hash BETWEEN {low} AND {high - 1}
        """
    )
    columns = [np.empty(0, np.uint64)]
    for batch in batches:
        column = batch["hash"]
        columns.append(column.to_numpy())
    hashes = np.concatenate(columns)
    hashes.sort()
    return hashes


def _register_texts(database: Database, images_file: Path, column: str, suspects: str) -> None:
    """Register `suspect_texts`: the `column` of the images whose numbers `suspects` has."""
    path = images_file.with_name(f"{suspects}.arrow")
    numbers = SortedStream(database.fetch_batches(f"SELECT number FROM {suspects} ORDER BY number"))
    # By way of the disk: while the numbers are read, DuckDB runs no other statement.
    write_arrow_file(path, _iter_texts(images_file, column, numbers))
    database.register("suspect_texts", arrow_stream_reader(path, ["number", column]))


def _iter_texts(images_file: Path, column: str, numbers: SortedStream) -> Iterator[pa.RecordBatch]:
    """The images with these numbers, as `number` and `column`."""
    for batch in arrow_stream_reader(images_file, ["number", column]):
        batch_numbers = batch["number"].to_numpy()
        is_wanted = numbers.contains(batch_numbers)
        yield batch.filter(pa.array(is_wanted))


def _group_by_shape(database: Database) -> tuple[ImageGroup, ...]:
    database.execute(SHAPES_SQL)
    count = _fetch_count(database, "SELECT count(*) FROM shapes")
    if count > MAX_SHAPES:
        raise BadInput(
            f"prompts: too many combinations ({count}, limit {MAX_SHAPES}) of "
            f"{', '.join(SHAPE_COLUMNS)}: "
            "images of different ones share no batch. Use fewer distinct values."
        )
    groups = database.fetch_table(
        "SELECT * EXCLUDE (first_number) FROM shapes ORDER BY first_number"
    )
    return tuple(ImageGroup(**group) for group in groups.to_pylist())


def _count_images(database: Database, groups: tuple[ImageGroup, ...]) -> PlanCounts:
    return PlanCounts(
        rejected_rows=_fetch_count(database, REJECTED_ROW_COUNT_SQL),
        images=sum(group.images for group in groups),
        duplicate_images=_fetch_count(database, "SELECT count(*) FROM duplicates"),
        truncated_prompts=sum(group.truncated for group in groups),
        existing_images=_fetch_count(database, "SELECT count(*) FROM existing"),
    )


def _fetch_count(database: Database, sql: str) -> int:
    (column,) = database.fetch_table(sql).columns
    return int(column[0].as_py())
