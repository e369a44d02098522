"""Locations of rejected rows in the user's files: the file, row, id and value.

The input is read a second time for the values, since image rows cannot hold invalid ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.columns import INPUT_IMAGE_COLUMNS
from imagekiln.steps.plan.catalog import Catalog
from imagekiln.steps.plan.columns import passthrough_names, uuid_texts
from imagekiln.steps.plan.input_files import COLUMN_KINDS, InputFile, iter_file_columns
from imagekiln.steps.plan.text_formats import LINE_FIELD
from imagekiln.steps.runs.tables import REJECTED_SCHEMA
from imagekiln.steps.runtime.figures import pluralize

MAX_CAUSES = 5
MAX_VALUE_CHARS = 200
MAX_SHOWN_CHARS = 40
MAX_VALUE_BYTES = 4 * MAX_VALUE_CHARS + 4  # holds MAX_VALUE_CHARS + 1 characters in UTF-8


@dataclass(frozen=True, slots=True)
class RejectionCause:
    """A reason for rejecting rows, the number of these rows, and the first of them.

    `column` is the name in the user's file. `setting` is the name of the prompt column, None for a
    carried column. `row_in_file` counts from 0 without a header. `line` is set for text formats.
    """

    column: str
    reason: str
    rows: int
    file: str
    row_in_file: int
    id: str | None
    value: str | None
    line: int | None = None
    setting: str | None = None

    def describe(self) -> str:
        """Format the cause as a clause, with the number of rows and the first row."""
        first = f"the first is row {self.row_in_file}"
        if self.line is not None:
            first += f" on line {self.line}"
        if self.id is not None:
            first += f", id {_quote(self.id)}"
        if self.value is not None:
            first += f", value {_quote(self.value)}"
        return f"{self.column} {self.reason} ({pluralize(self.rows, 'row')}; {first})"


def _quote(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…")


def find_rejection_causes(
    files: tuple[InputFile, ...], catalog: Catalog, counts: pa.Table | None = None
) -> tuple[RejectionCause, ...]:
    """Find the most frequent reasons for rejection, or those in `counts`, and their first rows."""
    if counts is None:
        counts = catalog.count_rejections(MAX_CAUSES)
    firsts = counts.select(["row", "column", "reason"]).sort_by("row")

    def find(start: int, end: int) -> pa.Table:
        return firsts.filter((pc.field("row") >= start) & (pc.field("row") < end))

    located = pa.Table.from_batches(_locate(files, find, firsts.num_rows), REJECTED_SCHEMA)
    rows = {row["input_row"]: row for row in located.to_pylist()}
    causes = []
    for count in counts.to_pylist():
        row = rows[count["row"]]
        cause = RejectionCause(
            column=row["column_name"],
            reason=count["reason"],
            rows=count["rows"],
            file=row["file"],
            row_in_file=row["row_in_file"],
            id=row["id"],
            value=row["value"],
            line=row["line"],
            setting=count["column"] if count["column"] in COLUMN_KINDS else None,
        )
        causes.append(cause)
    return tuple(causes)


def locate_rejected_rows(
    files: tuple[InputFile, ...], catalog: Catalog
) -> Iterator[pa.RecordBatch]:
    """Yield the rejected rows as REJECTED_SCHEMA. Values of image columns are null."""
    return _locate(files, catalog.fetch_rejected, catalog.counts.rejected_rows)


def _locate(
    files: tuple[InputFile, ...], find: Callable[[int, int], pa.Table], count: int
) -> Iterator[pa.RecordBatch]:
    """Yield `count` rejected rows as REJECTED_SCHEMA.

    `find(start, end)` returns `row`, `column` and `reason` of the rejected rows in a range.
    """
    first_row = 0
    for file in files:
        names = dict(file.column_names)
        for name in INPUT_IMAGE_COLUMNS:
            names.pop(name, None)
        if file.source.has_lines:
            names[LINE_FIELD.name] = LINE_FIELD.name
        start = first_row
        for columns in iter_file_columns(file, [*dict.fromkeys(names.values())]):
            if not count:
                return
            rejected = find(start, start + columns.num_rows)
            if rejected.num_rows:
                cells = columns.take(pa.array(rejected["row"].to_numpy() - start))
                values = {ours: cells[theirs] for ours, theirs in names.items()}
                yield from _describe_rows(
                    file,
                    rejected,
                    first_row,
                    values,
                ).to_batches()
            count -= rejected.num_rows
            start += columns.num_rows
        first_row += file.rows


def _describe_rows(
    file: InputFile, rejected: pa.Table, first_row: int, values: dict[str, pa.Array]
) -> pa.Table:
    """Convert rejected rows of a file to REJECTED_SCHEMA. `values` has cells by prompt column."""
    count = rejected.num_rows
    no_texts = pa.nulls(count, pa.string())
    shown = {name: _show(cells) for name, cells in values.items() if name != LINE_FIELD.name}
    value = no_texts
    for name in pc.unique(rejected["column"]).to_pylist():
        if name in shown:
            is_column = pc.equal(rejected["column"], name)
            value = pc.if_else(is_column, shown[name], value)
    carried = file.passthrough.names
    theirs = dict(zip(passthrough_names(len(carried)), carried, strict=True)) | file.column_names
    columns = [
        rejected["row"],
        pa.repeat(file.source.uri, count),
        pc.subtract(rejected["row"], first_row),
        values.get(LINE_FIELD.name, pa.nulls(count, LINE_FIELD.type)),
        pa.array([theirs.get(name, name) for name in rejected["column"].to_pylist()], pa.string()),
        rejected["reason"],
        shown.get("id", no_texts),
        value,
    ]
    return pa.Table.from_arrays(columns, schema=REJECTED_SCHEMA)


def _show(cells: pa.Array) -> pa.Array:
    """Format cells as short strings, with invalid UTF-8 escaped."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if isinstance(cells.type, pa.UuidType):
        return uuid_texts(cells.storage)
    shown = []
    for cell in cells.cast(pa.string()).view(pa.binary()).to_pylist():
        text = None if cell is None else cell[:MAX_VALUE_BYTES].decode(errors="backslashreplace")
        is_long = text is not None and len(text) > MAX_VALUE_CHARS
        shown.append(f"{text[:MAX_VALUE_CHARS]}…" if text and is_long else text)
    return pa.array(shown, pa.string())
