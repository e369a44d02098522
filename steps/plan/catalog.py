"""The images of a plan, made from prompt rows: validated, seeded, named, deduplicated, counted.

DuckDB does it in bounded memory, whatever the number of rows. Its tables have what SQL needs of an
image; the texts stay in a file on this disk, in the order of the rows.
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
READERS = 16  # of manifests


@dataclass(frozen=True, slots=True)
class ImageGroup:
    """Images of one shape, which may share a batch; `truncated` counts cut prompts.

    `input_images` names the input images of each, joined by commas. `pass_work` is the work of
    diffusion passes, in pixels times steps.
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
    """The images of a plan, counted, and readers of them while `database` is open.

    `groups` are in the order of their first rows. `images_file` has every image with its texts, and
    `passthrough` names its carried columns. The best of `candidates` images with neighboring
    numbers is kept.
    """

    groups: tuple[ImageGroup, ...]
    counts: PlanCounts
    database: Database
    images_file: Path
    passthrough: tuple[str, ...]
    candidates: int = 1

    def fetch_rejected(self, start: int, end: int) -> pa.Table:
        """The rejected rows from `start` to before `end`, in order: `row`, `column`, `reason`."""
        return self.database.fetch_table(f"""
            SELECT row, "column", reason FROM rejected JOIN labels USING (rule)
            WHERE row >= {start} AND row < {end} ORDER BY row""")

    def count_rejections(self, limit: int) -> pa.Table:
        """The most frequent reasons for rejection: `column`, `reason`, `rows`, the first `row`."""
        return self.database.fetch_table(f"""
            SELECT "column", reason, count(*) AS rows, min(row) AS row
            FROM rejected JOIN labels USING (rule)
            GROUP BY ALL ORDER BY rows DESC, row, "column", reason LIMIT {limit}""")

    def iter_duplicates(self) -> Iterator[pa.RecordBatch]:
        """The images that are made under an earlier row, as DUPLICATE_SCHEMA."""
        return self.database.fetch_batches(sql.DUPLICATE_ROWS)

    def iter_images(self, sampled: Int64Array | None = None) -> Iterator[pa.RecordBatch]:
        """Every planned image in the order of groups and rows, except those in `sampled`."""
        columns = [*IMAGE_ROW_SCHEMA.names, *self.passthrough]
        images = self._iter_planned(columns, sampled)
        if len(self.groups) > 1:
            sizes = [group.images for group in self.groups]
            images = order_by_group(images, sizes, self.images_file.parent)
        return (batch.drop_columns([GROUP_COLUMN]) for batch in images)

    def iter_columns(self, columns: list[str], numbers: Int64Array) -> Iterator[pa.RecordBatch]:
        """Columns of the images with these numbers, which rise, in the order of rows."""
        for batch in read_arrow_batches(self.images_file):
            batch_numbers = batch["number"].to_numpy()
            is_sampled = np.isin(batch_numbers, numbers, assume_unique=True)
            if is_sampled.any():
                rows = batch.select(columns)
                yield rows.filter(pa.array(is_sampled))

    def _iter_planned(
        self, columns: list[str], sampled: Int64Array | None
    ) -> Iterator[pa.RecordBatch]:
        """Planned images in the order of rows, which a join would lose, with their group."""
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
    """Make images of prompt rows by `images_sql`, which reads from `input`, and write them.

    Exceptions of `batches` pass unchanged. Raises TryAgain.
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
    # DuckDB passes on what its input raises as text only.
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
    """Choose the images to make from `images_file`, and group them by shape.

    Images of the runs at the URIs `existing_runs` are omitted. Candidates are planned together:
    all of them or, if one exists, none. Raises BadInput, TryAgain.
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
    """Create the table of rejected rows with their rule, and that of the rules' names."""
    labels = " UNION ALL ".join(
        f"SELECT {index}, '{rule.column}', {quote_literal(rule.reason)}"
        for index, rule in enumerate(rules)
    )
    database.execute(
        f'CREATE TABLE labels AS SELECT * FROM ({labels}) label(rule, "column", reason)'
    )
    database.execute(sql.rejected(len(rules) - 1))


def _create_repeated_table(database: Database, name: str, hashes_sql: str) -> None:
    """Create the table `name` of hashes that the query returns more than once.

    NumPy sorts hashes in a tenth of the time that DuckDB takes to group them, in bounded memory.
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
    """The ids of other successful runs, oldest first, if the job skips existing images."""
    if not job.skip_existing:
        return ()
    entries = find_finished_runs(job.output)
    return tuple(entry.run_id for entry in entries if entry.run_id != run_id)


def create_existing_table(database: Database, runs: Sequence[str]) -> None:
    """Fill the table `existing` with the numbers of images that one of the runs holds.

    The view `planned_images` has the others. Raises BadInput for a run that is damaged, TryAgain.
    """
    database.execute(sql.HELD)
    for ids in _iter_held_ids([open_store(uri) for uri in runs]):
        database.insert(sql.INSERT_HELD, "manifest", ids)
    database.execute(sql.EXISTING)
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
