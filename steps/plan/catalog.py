"""A catalog of planned images. Prompt rows are validated, seeded, named, deduplicated and counted.

DuckDB does this in bounded memory for any number of rows. Its tables hold only the columns that SQL
needs. Prompts and other strings stay in a file on the local disk, in row order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan import catalog_sql as sql
from imagekiln.steps.plan.image_sql import SHAPE_COLUMNS, quote_literal
from imagekiln.steps.plan.ordering import (
    GROUP_COLUMN,
    Int64Array,
    order_by_group,
)
from imagekiln.steps.plan.rules import SAME_ID_RULE, RejectionRule
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.manifest import read_held_ids
from imagekiln.steps.runs.plan import PlanCounts
from imagekiln.steps.runs.registry import find_finished_runs
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import (
    Database,
    arrow_stream_reader,
    read_arrow_batches,
    write_arrow_file,
)
from imagekiln.steps.storage.store import Store

MAX_SHAPES = 10_000
HASHES_PER_RANGE = 2**22  # 32 MiB, sorted in memory at a time
READERS = 16  # manifests read at a time


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """A group of images of one shape, which may share a batch.

    `truncated` counts prompts that the model truncates. `input_images` is a comma-separated list of
    input image columns. `pass_work` is the work of diffusion passes, in pixels times steps.
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
    guidance_rescale: float | None = None
    pass_work: float = 0.0


@dataclass(frozen=True, slots=True)
class Catalog:
    """A catalog of the images of a plan, readable while `database` is open.

    `groups` are in the order of their first rows. `images_file` holds every image with its prompts,
    and `passthrough` names its carried columns. Of every `candidates` consecutive images, the best
    is kept.
    """

    groups: tuple[ImageGroup, ...]
    counts: PlanCounts
    database: Database
    images_file: Path
    passthrough: tuple[str, ...]
    candidates: int = 1

    def fetch_rejected(self, start: int, end: int) -> pa.Table:
        """Fetch `row`, `column` and `reason` of the rejected rows in [`start`, `end`), in order."""
        return self.database.fetch_table(f"""
            SELECT row, "column", reason FROM rejected JOIN labels USING (rule)
            WHERE row >= {start} AND row < {end} ORDER BY row""")

    def count_rejections(self, limit: int) -> pa.Table:
        """Count `rows` by `column` and `reason`, most frequent first, with the first `row`."""
        return self.database.fetch_table(f"""
            SELECT "column", reason, count(*) AS rows, min(row) AS row
            FROM rejected JOIN labels USING (rule)
            GROUP BY ALL ORDER BY rows DESC, row, "column", reason LIMIT {limit}""")

    def iter_duplicates(self) -> Iterator[pa.RecordBatch]:
        """Yield images that duplicate an image of an earlier row, as DUPLICATE_SCHEMA."""
        return self.database.fetch_batches(sql.DUPLICATE_ROWS)

    def iter_images(self, sampled: Int64Array | None = None) -> Iterator[pa.RecordBatch]:
        """Yield planned images by group and row, except those whose number is in `sampled`."""
        columns = [*IMAGE_ROW_SCHEMA.names, *self.passthrough]
        images = self._iter_planned(columns, sampled)
        if len(self.groups) > 1:
            sizes = [group.images for group in self.groups]
            images = order_by_group(images, sizes, self.images_file.parent)
        return (batch.drop_columns([GROUP_COLUMN]) for batch in images)

    def iter_columns(self, columns: list[str], numbers: Int64Array) -> Iterator[pa.RecordBatch]:
        """Yield `columns` of the images with the given ascending `numbers`, in row order."""
        for batch in read_arrow_batches(self.images_file):
            batch_numbers = batch["number"].to_numpy()
            is_sampled = np.isin(batch_numbers, numbers, assume_unique=True)
            if is_sampled.any():
                rows = batch.select(columns)
                yield rows.filter(pa.array(is_sampled))

    def _iter_planned(
        self, columns: list[str], sampled: Int64Array | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield planned images with their group, in row order. A join would not keep the order."""
        for batch in read_arrow_batches(self.images_file):
            numbers = batch["number"].to_numpy()
            planned = self.database.fetch_table(f"""
                SELECT number, place FROM planned
                WHERE number BETWEEN {numbers[0]} AND {numbers[-1]}""")
            if sampled is not None:
                is_rest = np.isin(planned["number"].to_numpy(), sampled, invert=True)
                planned = planned.filter(pa.array(is_rest))
            rows = batch.select(columns)
            if len(planned) < len(rows):
                places = np.searchsorted(numbers, planned["number"].to_numpy())
                rows = rows.take(pa.array(places))
            yield rows.append_column(GROUP_COLUMN, pa.array(planned["place"].to_numpy()))


def write_images(
    database: Database,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    images_sql: str,
    path: Path,
) -> None:
    """Convert prompt rows to image rows and write them to `path` as an Arrow file.

    `images_sql` is a query over the table `input`. Exceptions that `batches` raises pass unchanged.
    Raises TryAgain.
    """
    errors: list[Exception] = []
    rows = pa.RecordBatchReader.from_batches(schema, _capture_errors(batches, errors))
    database.register("input", rows)
    try:
        write_arrow_file(path, database.fetch_batches(images_sql))
    except Exception:
        if errors:
            raise errors[0] from None
        raise


def _capture_errors(
    batches: Iterator[pa.RecordBatch], errors: list[Exception]
) -> Iterator[pa.RecordBatch]:
    # DuckDB keeps only the message of an exception that its input raises.
    try:
        yield from batches
    except Exception as error:
        errors.append(error)
        raise


def catalog_images(
    database: Database,
    images_file: Path,
    rules: tuple[RejectionRule, ...],
    passthrough: tuple[str, ...],
    existing_runs: Sequence[str] = (),
    candidates: int = 1,
) -> Catalog:
    """Choose the images of `images_file` to generate, and group them by shape.

    Images that the runs at the URIs `existing_runs` hold are omitted. The candidates of an image
    are all planned or, if one of them exists, all omitted. Raises BadInput, TryAgain.
    """
    database.register("narrow_images", arrow_stream_reader(images_file, sql.NARROW_COLUMNS))
    database.execute(sql.IMAGES)
    _create_repeated_table(database, "repeated_ids", sql.ID_HASHES)
    database.execute(sql.SAME_ID)
    _create_rejected_table(database, (*rules, SAME_ID_RULE))
    database.execute(sql.VALID_IMAGES)
    _create_repeated_table(database, "repeated_images", sql.IMAGE_HASHES)
    database.execute(sql.DUPLICATES)
    database.execute(sql.UNIQUE_IMAGES)
    create_existing_table(database, existing_runs)
    if candidates > 1:
        database.execute(sql.whole_groups(candidates))
    groups = _group_by_shape(database)
    counts = PlanCounts(
        rejected_rows=_fetch_count(database, "SELECT count(*) FROM rejected"),
        images=sum(group.images for group in groups),
        duplicate_images=_fetch_count(database, "SELECT count(*) FROM duplicates"),
        truncated_prompts=sum(group.truncated for group in groups),
        existing_images=_fetch_count(database, "SELECT count(*) FROM existing"),
    )
    return Catalog(
        groups=groups,
        counts=counts,
        database=database,
        images_file=images_file,
        passthrough=passthrough,
        candidates=candidates,
    )


def _create_rejected_table(database: Database, rules: tuple[RejectionRule, ...]) -> None:
    """Create the table of rejected rows with their rules, and the table of rule labels."""
    labels = " UNION ALL ".join(
        f"SELECT {index}, '{rule.column}', {quote_literal(rule.reason)}"
        for index, rule in enumerate(rules)
    )
    database.execute(
        f'CREATE TABLE labels AS SELECT * FROM ({labels}) label(rule, "column", reason)'
    )
    database.execute(sql.rejected(len(rules) - 1))


def _create_repeated_table(database: Database, name: str, hashes_sql: str) -> None:
    """Create a table of the hashes that `hashes_sql` returns more than once.

    Sorting them with NumPy takes a tenth of the time of a GROUP BY in DuckDB, in bounded memory.
    """
    database.execute(f"CREATE TABLE {name} (hash UBIGINT)")
    count = _fetch_count(database, f"SELECT count(*) FROM ({hashes_sql})")
    ranges = count // HASHES_PER_RANGE + 1
    bounds = [2**64 * number // ranges for number in range(ranges + 1)]
    for low, high in pairwise(bounds):
        rows = database.fetch_table(f"""
            SELECT hash FROM ({hashes_sql}) WHERE hash BETWEEN {low} AND {high - 1}""")
        hashes = np.sort(rows["hash"].to_numpy())
        repeated = hashes[1:][hashes[1:] == hashes[:-1]]
        database.insert(f"INSERT INTO {name} FROM hashes", "hashes", pa.table({"hash": repeated}))


def _group_by_shape(database: Database) -> tuple[ImageGroup, ...]:
    database.execute(sql.SHAPES)
    count = _fetch_count(database, "SELECT count(*) FROM shapes")
    if count > MAX_SHAPES:
        raise BadInput(
            f"prompts: too many combinations ({count}, limit {MAX_SHAPES}) of "
            f"{', '.join(SHAPE_COLUMNS)}: "
            "images of different ones share no batch. Use fewer distinct values."
        )
    database.execute(sql.PLANNED)
    groups = database.fetch_table(sql.GROUPS)
    return tuple(ImageGroup(**group) for group in groups.to_pylist())


def _fetch_count(database: Database, sql: str) -> int:
    (column,) = database.fetch_table(sql).columns
    return int(column[0].as_py())


def successful_runs(job: Job, run_id: str | None = None) -> tuple[str, ...]:
    """Return the ids of other successful runs, oldest first, if the job skips existing images."""
    if not job.skip_existing:
        return ()
    entries = find_finished_runs(job.output)
    return tuple(entry.run_id for entry in entries if entry.run_id != run_id)


def create_existing_table(database: Database, runs: Sequence[str]) -> None:
    """Create the table `existing` of images in one of the runs, and the view `planned_images`.

    The view has the remaining images. Raises BadInput if a run is damaged, TryAgain.
    """
    database.execute(sql.HELD)
    for ids in _iter_held_ids([open_store(uri) for uri in runs]):
        database.insert(sql.INSERT_HELD, "manifest", ids)
    database.execute(sql.EXISTING)
    database.execute("DROP TABLE held")
    database.execute(sql.PLANNED_IMAGES)


def _iter_held_ids(runs: Sequence[Store]) -> Iterator[pa.Table]:
    """Yield the ids of the images in the runs, one table per manifest."""
    heads = map_ordered(lambda run: read_head(runs[run]), len(runs), READERS)
    manifests = [
        (store, key)
        for store, head in zip(runs, heads, strict=True)
        for key in head.commit.manifests
    ]
    return map_ordered(lambda place: read_held_ids(*manifests[place]), len(manifests), READERS)
