"""Rows of CSV and TSV, and of text with a prompt on each line.

What is malformed is named by file and line. Bytes that are no UTF-8 stay in their cells, so that
they cost their own rows and no others.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

import pyarrow as pa

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.plan.csv_quoting import QuotingCheck
from imagekiln.steps.storage.failures import translate_errors

MAX_FIELD_CHARS = 16 * 2**20
BATCH_ROWS = 65_536
BATCH_CHARS = 16 * 2**20
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
QUOTED_TEXT = re.compile('"[^"]*("|$)')
OTHER_SEPARATORS = {";": "';'", "\t": "a tab"}
# What a cell takes in memory beside its characters, so that many empty ones are counted too.
CELL_CHARS = 4
# The line that a row begins on: a column of converted files which the table does not have.
LINE_FIELD = pa.field("imagekiln:line", pa.int64())
# Of text, whose lines are prompts, if it has a header or objects.
TABLE_HEADER = re.compile(r"(.*[,\t;])?\W*prompts?\W*([,\t;].*)?", re.IGNORECASE)
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file, as batches of one schema, and what is found in them as they are read."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    quoting: QuotingCheck | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    """The cells of a record, and the line that it begins on."""

    line: int
    cells: list[str]


@contextmanager
def open_delimited(path: Path, where: str, delimiter: str) -> Iterator[Rows]:
    """The rows of a CSV or TSV file with a header line. All cells are text, empty ones null."""
    with open_text(path, where) as file, _field_limit(MAX_FIELD_CHARS):
        if delimiter == ",":
            _refuse_other_separators(file, where)
        quoting = QuotingCheck(where, delimiter)
        records = _iter_records(file, where, delimiter, quoting)
        header = next(records, _Record(1, []))
        fields = []
        for cell in header.cells:
            name = check_name(cell.strip(), where)
            fields.append(pa.field(name, pa.string()))
        schema = pa.schema([*fields, LINE_FIELD])
        batches = _batch_records(records, schema)
        yield Rows(schema, batches, quoting)


@contextmanager
def open_prompt_lines(path: Path, where: str) -> Iterator[Rows]:
    """The lines of a text file as prompts. Raises BadInput if it seems to be a table."""
    schema = pa.schema([pa.field("prompt", pa.string()), LINE_FIELD])
    with open_text(path, where) as file:
        first = next(file, "").strip()
        file.seek(0)
        if first.startswith(("{", "[")) and '"' in first:
            raise BadInput(f"{where}: is JSON, not a prompt on each line. End its name in .json.")
        if TABLE_HEADER.fullmatch(first):
            raise BadInput(
                f"{where}: begins with a header. End its name in .csv, or .tsv if tabs separate "
                "its columns."
            )
        lines = (
            _Record(number, [line.rstrip("\r\n")])
            for number, line in enumerate(file, start=1)
            if line.strip()
        )
        yield Rows(schema, _batch_records(lines, schema))


def text_array(values: Sequence[str | None]) -> pa.Array:
    """The texts as a column; those that are no UTF-8 keep the bytes that they came from."""
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        cells = [None if value is None else _encode(value) for value in values]
        return pa.array(cells, pa.binary()).view(pa.string())


def _encode(text: str) -> bytes:
    with suppress(UnicodeEncodeError):
        content = text.encode("utf-8", "surrogateescape")
        if content.decode("utf-8", "surrogateescape") == text:
            return content
    # Halves of characters, which JSON can write as escapes: they are no bytes of the file.
    return text.encode("utf-8", "surrogatepass")


@contextmanager
def open_text(path: Path, where: str) -> Iterator[TextIO]:
    """Open a text file. Raises BadInput where it is UTF-16."""
    with translate_errors(where):
        with path.open("rb") as file:
            mark = file.read(2)
        if mark in UTF16_MARKS:
            raise BadInput(f"{where}: is UTF-16. Save it as UTF-8.")
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            yield text


@contextmanager
def _field_limit(characters: int) -> Iterator[None]:
    before = csv.field_size_limit(characters)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def check_name(name: str, where: str) -> str:
    """The name of a column, which Parquet needs as UTF-8. Raises BadInput where it is not."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{where}: the name of a column, {cut_name(name)!a}, is no UTF-8. "
            "Save the file as UTF-8."
        ) from error
    return name


def _iter_records(
    file: TextIO, where: str, delimiter: str, quoting: QuotingCheck
) -> Iterator[_Record]:
    """The records of a CSV file, the header first; blank lines are skipped."""
    lines: list[str] = []  # of the record that is being read
    reader = csv.reader(_keep_lines(file, lines), delimiter=delimiter, strict=True)
    width: int | None = None
    first_line = 1
    try:
        for record in reader:
            if record:
                width = width or len(record)
                _require_width(record, width, f"{where}: line {first_line}")
                if len(lines) > 1 or '"' in lines[0]:
                    quoting.check(first_line, "".join(lines), record)
                yield _Record(first_line, record)
            first_line = reader.line_num + 1
            lines.clear()
    except csv.Error as error:
        raise _csv_error(where, first_line, str(error)) from error


def _keep_lines(file: TextIO, lines: list[str]) -> Iterator[str]:
    for line in file:
        lines.append(line)
        yield line


def _refuse_other_separators(file: TextIO, where: str) -> None:
    """Raise BadInput for a header that has no comma, but a separator that spreadsheets write.

    What stands in quotation marks does not count. Leaves the file at its start.
    """
    header = QUOTED_TEXT.sub("", next(file, ""))
    file.seek(0)
    if "," in header:
        return
    for mark, label in OTHER_SEPARATORS.items():
        if mark in header:
            raise BadInput(f"{where}: the separator seems to be {label}. Save it with commas.")


def _require_width(record: list[str], width: int, line: str) -> None:
    if len(record) != width:
        fields = "1 field" if len(record) == 1 else f"{len(record)} fields"
        remedy = "Put quotation marks around a field that contains the separator."
        if len(record) < width:
            remedy = "Remove the line, or add what it lacks, if only the separators."
        raise BadInput(f"{line} has {fields}, and the header has {width}. {remedy}")


def _csv_error(where: str, line: int, reason: str) -> BadInput:
    is_too_long = reason.startswith("field larger")
    if is_too_long or reason == "unexpected end of data":
        problem = "has a quotation mark that is not closed"
        if is_too_long:
            problem += f", or a field of more than {MAX_FIELD_CHARS} characters"
        return BadInput(f"{where}: line {line} {problem}. Correct the line.")
    problem = f"is malformed ({reason})"
    if "expected after" in reason:
        problem = "has text after a closing quotation mark"
    return BadInput(
        f"{where}: line {line} {problem}. Write each quotation mark inside a quoted field twice."
    )


def _batch_records(records: Iterator[_Record], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in take_batches(records, _count_record_chars):
        lines = [record.line for record in batch]
        records_cells = [record.cells for record in batch]
        arrays = []
        for column in zip(*records_cells, strict=True):
            cells = [cell or None for cell in column]
            arrays.append(text_array(cells))
        arrays.append(pa.array(lines, LINE_FIELD.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _count_record_chars(record: _Record) -> int:
    return sum(map(len, record.cells)) + CELL_CHARS * len(record.cells)


def take_batches(rows: Iterator[Row], count_chars: Callable[[Row], int]) -> Iterator[list[Row]]:
    """The rows in lists, shorter ones where texts are long."""
    batch: list[Row] = []
    chars = 0
    for row in rows:
        batch.append(row)
        chars += count_chars(row)
        if len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS:
            yield batch
            batch = []
            chars = 0
    if batch:
        yield batch
