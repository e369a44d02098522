"""Rows of CSV and TSV, and of text with a prompt on each line.

What is malformed is named by file and line. Bytes that are no UTF-8 stay in their cells, so that
they cost their own rows and no others.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.plan.csv_quoting import QuotingCheck
from imagekiln.steps.storage.failures import translate_errors

MAX_FIELD_CHARS = 16 * 2**20
BATCH_ROWS = 65_536
BATCH_CHARS = 16 * 2**20
PROMPT_LINE = re.compile(r"\s*[^\s#]")  # neither blank nor a comment
COMMENTS_PROBLEM = "skipped as a comment, for the # before it"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
QUOTED_TEXT = re.compile('"[^"]*("|$)')
OTHER_SEPARATORS = {";": "';'", "\t": "a tab"}
TWICE = "Write each quotation mark inside a quoted field twice."
# By what the `csv` module says.
CSV_PROBLEMS = {
    "unexpected end": "has a quotation mark that is not closed. Correct the line.",
    "field larger": "has a quotation mark that is not closed, or a field of more than "
    f"{MAX_FIELD_CHARS} characters. Correct the line.",
    "expected after": f"has text after a closing quotation mark. {TWICE}",
}
# What a cell takes in memory beside its characters, so that many empty ones are counted too.
CELL_CHARS = 4
# The line that a row begins on: a column of converted files which the table does not have.
LINE_FIELD = pa.field("imagekiln:line", pa.int64())
# Of text, whose lines are prompts, if it has a header or objects.
TABLE_HEADER = re.compile(r"(.*[,\t;])?\W*prompts?\W*([,\t;].*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file, as batches of one schema, and what is found in them as they are read."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    quoting: QuotingCheck | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The cells of a row, the line that it begins on, if any, and the length of its text."""

    line: int | None
    chars: int
    cells: Sequence[object]


@contextmanager
def open_delimited(path: Path, where: str, delimiter: str) -> Iterator[Rows]:
    """The rows of a CSV or TSV file with a header line. All cells are text, empty ones null."""
    with open_text(path, where) as file, _field_limit(MAX_FIELD_CHARS):
        if delimiter == ",":
            _refuse_other_separators(file, where)
        quoting = QuotingCheck(where, delimiter)
        records = _iter_records(file, where, delimiter, quoting)
        header = next(records, Record(1, 0, []))
        fields = []
        for cell in header.cells:
            name = check_name(str(cell or "").strip(), where)
            fields.append(pa.field(name, pa.string()))
        yield batch_records(records, fields, quoting)


@contextmanager
def open_prompt_lines(path: Path, where: str) -> Iterator[Rows]:
    """The lines of a text file as prompts. Raises BadInput if it seems to be a table."""
    with open_text(path, where) as file:
        first = next(filter(PROMPT_LINE.match, file), "").strip()
        file.seek(0)
        if first.startswith(("{", "[")) and '"' in first:
            raise BadInput(f"{where}: is JSON, not a prompt on each line. End its name in .json.")
        if TABLE_HEADER.fullmatch(first):
            raise BadInput(
                f"{where}: begins with a header. End its name in .csv, or .tsv if tabs separate "
                "its columns."
            )
        comments = QuotingCheck(where, "\n")
        prompts = _iter_prompts(file, comments)
        yield batch_records(prompts, [pa.field("prompt", pa.string())], comments)


def _iter_prompts(file: TextIO, comments: QuotingCheck) -> Iterator[Record]:
    """The lines of a text file that are prompts; comments are counted."""
    for number, line in enumerate(file, start=1):
        text = line.rstrip("\r\n")
        if PROMPT_LINE.match(text):
            yield Record(number, len(line), [text])
        elif text.strip():
            comments.count(number, COMMENTS_PROBLEM, text)


def text_array(values: Sequence[Any]) -> pa.Array:
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
) -> Iterator[Record]:
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
                chars = sum(map(len, record))
                yield Record(first_line, chars, [cell or None for cell in record])
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
    problem = f"is malformed ({reason}). {TWICE}"
    for beginning, known in CSV_PROBLEMS.items():
        if beginning in reason:
            problem = known
    return BadInput(f"{where}: line {line} {problem}")


def batch_records(
    records: Iterator[Record], fields: Sequence[pa.Field], quoting: QuotingCheck | None = None
) -> Rows:
    """The records, whose cells are those of the fields, as rows."""
    schema = pa.schema([*fields, LINE_FIELD])

    def to_batch(batch: Sequence[Record]) -> pa.RecordBatch:
        columns = zip(*(record.cells for record in batch), strict=True)
        arrays = [
            text_array(cells) if pa.types.is_string(field.type) else pa.array(cells, field.type)
            for cells, field in zip(columns, fields, strict=True)
        ]
        lines = [record.line for record in batch]
        arrays.append(pa.array(lines, LINE_FIELD.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    batches = _take_batches(records, CELL_CHARS * len(fields))
    return Rows(schema, map(to_batch, batches), quoting)


def _take_batches(records: Iterator[Record], row_chars: int) -> Iterator[list[Record]]:
    """The records in lists, shorter ones where texts are long."""
    batch: list[Record] = []
    chars = 0
    for record in records:
        batch.append(record)
        chars += record.chars + row_chars
        if len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS:
            yield batch
            batch = []
            chars = 0
    if batch:
        yield batch
