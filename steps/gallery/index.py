"""The runs of a gallery, and an index of their manifests in a local DuckDB file.

The index leaves out hashes and similar columns, which are read from the manifest per image. Columns
have generated SQL names, so that statements contain no user input.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Literal

import pyarrow as pa

from imagekiln.steps.dataset.runs import RunSource, describe_source, unite_columns
from imagekiln.steps.errors import BadInput, Incomplete, KilnError, Missing
from imagekiln.steps.maintain.run_list import open_runs
from imagekiln.steps.runs.run import Run, read_shard_columns
from imagekiln.steps.runs.tables import LOCATION_SCHEMA, ORIGIN_SCHEMA
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.scratch import Database

MEMORY_LIMIT = "512MiB"
MAX_THREADS = 2
RUN_READERS = 16
READERS = 4  # each holds the columns of one manifest
ROWS_AT_ONCE = 122_880  # size of a DuckDB row group, which is then written once
MAX_PROBLEMS = 20
ColumnKind = Literal["text", "whole", "number", "flags", "id", "run"]
RUN_COLUMN = "run_id"
ID_COLUMN = "image_id"
# Hashes, and columns that are constant in a run: shown with an image, but not indexed.
LEFT_OUT = {
    *ORIGIN_SCHEMA.names,
    *LOCATION_SCHEMA.names,
    ID_COLUMN,
    "sha256",
    "pixels_sha256",
    "source_image",
    "mask_image",
    "control_image",
    "reference_images",
}


@dataclass(frozen=True, slots=True)
class GalleryRun:
    """A run with a complete manifest, and its description."""

    run: Run
    source: RunSource

    @property
    def run_id(self) -> str:
        """Id of the run, which is the name of its folder."""
        return self.run.plan.run_id


@dataclass(frozen=True, slots=True)
class GalleryRuns:
    """The runs of a gallery, newest first. `problems` describes omitted runs and columns."""

    uri: str
    runs: tuple[GalleryRun, ...]
    columns: pa.Schema
    problems: tuple[str, ...] = ()


def find_gallery_runs(uri: str) -> GalleryRuns:
    """Find the aggregated runs at or under `uri`. Raises Missing, BadInput, TryAgain."""
    plans = sorted(
        open_runs(uri, skips_unreadable=True),
        key=lambda run: (run.plan.created_at, run.plan.run_id),
        reverse=True,
    )
    described = list(map_ordered(lambda index: _describe(plans[index]), len(plans), RUN_READERS))
    runs = tuple(run for run in described if isinstance(run, GalleryRun))
    problems = [str(run) for run in described if not isinstance(run, GalleryRun)]
    if not runs:
        raise Missing(f"{uri}: has no run that was aggregated. Run its job to the end first.")

    sources = tuple(run.source for run in runs)
    columns = unite_columns(sources, names=())
    names = dict.fromkeys(name for source in sources for name in source.columns.names)
    problems += [
        f"The column {name!r} has different types in these runs, and cannot be filtered by."
        for name in names
        if name not in columns.names
    ]
    return GalleryRuns(uri, runs, columns, tuple(problems))


def _describe(run: Run) -> GalleryRun | BadInput | Incomplete:
    try:
        return GalleryRun(run, describe_source(run))
    except (BadInput, Incomplete) as error:
        return error


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A column for filtering images. `field` is its SQL name."""

    name: str
    kind: ColumnKind
    field: str
    sql_type: str


@dataclass(frozen=True, slots=True)
class Position:
    """The location of a manifest row: the index of its run, its shard, and its row."""

    run: int
    shard: int
    row: int


@dataclass(slots=True)
class IndexProgress:
    """The progress of the index. `problems` describes manifests that cannot be read."""

    images: int
    indexed: int = 0
    is_complete: bool = False
    problems: list[str] = dataclasses.field(default_factory=list)


class GalleryIndex:
    """An index of the manifest rows of all runs, newest run first."""

    def __init__(self, runs: GalleryRuns, folder: Path) -> None:
        """Create an empty index in a file in `folder`."""
        self.runs = runs
        self.columns = index_columns(runs.columns)
        images = sum(sum(run.source.shard_images) for run in runs.runs)
        self.progress = IndexProgress(images, problems=list(runs.problems))
        self._stopped = Event()
        self._read_columns = [
            column for column in self.columns.values() if column.kind not in ("run", "id")
        ]
        self._database = Database(
            folder, file="gallery.duckdb", memory_limit=MEMORY_LIMIT, max_threads=MAX_THREADS
        )
        fields = [f"{column.field} {column.sql_type}" for column in self.columns.values()]
        self._database.execute(
            f"CREATE TABLE images ({', '.join(fields)}, shard INTEGER, shard_row INTEGER)"
        )

    def fetch(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Fetch the rows of a query on the table `images`. It is thread-safe."""
        return self._database.fetch_rows(sql, parameters)

    def stop(self) -> None:
        """Request `fill` to stop."""
        self._stopped.set()

    def close(self) -> None:
        """Close the database file."""
        self._database.close()

    def fill(self) -> None:
        """Index all manifests, skipping manifests that cannot be read."""
        try:
            for number, run in enumerate(self.runs.runs):
                for rows in self._iter_batches(number, run):
                    self._append(rows)
                    if self._stopped.is_set():
                        return
            self.progress.is_complete = True
        except Exception as error:
            self._add_problem(f"The index is not complete: {str(error) or type(error).__name__}")
            if not isinstance(error, KilnError):
                raise

    def _add_problem(self, sentence: str) -> None:
        """Add a sentence to the problems on the page, up to MAX_PROBLEMS."""
        if len(self.progress.problems) < MAX_PROBLEMS:
            self.progress.problems.append(sentence)

    def _iter_batches(self, number: int, run: GalleryRun) -> Iterator[pa.Table]:
        """Yield the rows of a run in batches. The first are small, to show a page early."""
        pending: list[pa.Table] = []
        read = self._shard_reader(number, run)
        for table in map_ordered(read, len(run.source.shard_images), READERS):
            if isinstance(table, KilnError):
                self._add_problem(str(table))
                continue
            pending.append(table)
            rows = sum(table.num_rows for table in pending)
            if rows >= min(ROWS_AT_ONCE, self.progress.indexed):
                yield pa.concat_tables(pending)
                pending = []
        if pending:
            yield pa.concat_tables(pending)

    def _shard_reader(self, number: int, run: GalleryRun) -> Callable[[int], pa.Table | KilnError]:
        schema = run.source.columns
        present = [column for column in self._read_columns if column.name in schema.names]
        names = [ID_COLUMN, *(column.name for column in present)]

        def read(shard: int) -> pa.Table | KilnError:
            if self._stopped.is_set():
                return BadInput("The gallery was stopped.")
            try:
                table = read_shard_columns(run.run, shard, names)
            except KilnError as error:
                return error
            return _add_position(table, present, Position(number, shard, 0))

        return read

    def _append(self, rows: pa.Table) -> None:
        fields = ", ".join(f'"{name}"' for name in rows.column_names)
        values = ", ".join(
            "CAST(image_id AS UUID)" if name == "image_id" else f'"{name}"'
            for name in rows.column_names
        )
        sql = f"INSERT INTO images ({fields}) SELECT {values} FROM manifest_rows"
        self._database.insert(sql, "manifest_rows", rows)
        self.progress.indexed += rows.num_rows


def _add_position(table: pa.Table, columns: Sequence[IndexColumn], first: Position) -> pa.Table:
    rows = table.num_rows
    numbers = {"run": first.run, "shard": first.shard}
    fields = [column.field for column in columns]
    renamed = table.rename_columns(["image_id", *fields])
    for name, number in numbers.items():
        scalar = pa.scalar(number, pa.int32())
        constant = pa.repeat(scalar, rows)
        renamed = renamed.append_column(name, constant)
    places = pa.array(range(rows), pa.int32())
    return renamed.append_column("shard_row", places)


def index_columns(schema: pa.Schema) -> dict[str, IndexColumn]:
    """Return the columns to index, by name, for manifests with this schema."""
    columns = {
        RUN_COLUMN: IndexColumn(RUN_COLUMN, "run", "run", "INTEGER"),
        ID_COLUMN: IndexColumn(ID_COLUMN, "id", "image_id", "UUID"),
    }
    for number, field in enumerate(schema):
        described = _describe_type(field.type)
        if field.name in LEFT_OUT or described is None:
            continue
        kind, sql_type = described
        columns[field.name] = IndexColumn(field.name, kind, f"c{number}", sql_type)
    return columns


def _describe_type(arrow_type: pa.DataType) -> tuple[ColumnKind, str] | None:
    """Return the kind and SQL type of a column; None for structs, bytes and unsupported types."""
    types = pa.types
    if types.is_float16(arrow_type) or types.is_decimal256(arrow_type):
        return None
    if types.is_signed_integer(arrow_type):
        return "whole", "BIGINT"
    if types.is_unsigned_integer(arrow_type):
        return "whole", "UBIGINT"
    if types.is_floating(arrow_type) or types.is_decimal(arrow_type):
        return "number", "DOUBLE"
    if types.is_list(arrow_type) and _is_text(arrow_type.value_type):
        return "flags", "VARCHAR[]"
    if types.is_dictionary(arrow_type):
        return _describe_type(arrow_type.value_type)
    if _is_text(arrow_type) or types.is_boolean(arrow_type) or types.is_temporal(arrow_type):
        return "text", "VARCHAR"
    return None


def _is_text(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_string_view(arrow_type)
    )
