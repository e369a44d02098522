"""Rows of text files: CSV and TSV, JSON, and a prompt on each line.

A malformed line is named by file and number. Bytes that are not UTF-8 stay in their cells, so that
they cost only their own rows.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.plan.columns import SYNONYMS, describe_unread, fold_name
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.failures import translate_errors

MAX_FIELD_CHARS = 16 * 2**20
BATCH_ROWS = 65_536
BATCH_CHARS = 16 * 2**20
PROMPT_LINE = re.compile(r"\s*[^\s#]")  # neither blank nor a comment
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
QUOTED_TEXT = re.compile('"[^"]*("|$)')
OTHER_SEPARATORS = {";": "';'", "\t": "a tab"}
# What a cell takes in memory beside its characters, so that many empty ones are counted too.
CELL_CHARS = 4
# The line that a row begins on: a column of converted files which the table does not have.
LINE_FIELD = pa.field("imagekiln:line", pa.int64())
# Of text, whose lines are prompts, if it has a header or objects.
TABLE_HEADER = re.compile(r"(.*[,\t;])?\W*prompts?\W*([,\t;].*)?", re.IGNORECASE)
INT64_RANGE = range(-(2**63), 2**63)
EXACT_INTEGERS = range(-(2**53) + 1, 2**53)  # of those that a float has
# The JSON types of a column's values: Python's, but for integers that no float has, or no 64 bits.
LARGE_INTEGER = "integer that no float has"
INTEGER_TEXT = "integer"
ARROW_TYPES: tuple[tuple[set[object], pa.DataType], ...] = (
    (set(), pa.null()),
    ({bool}, pa.bool_()),
    ({int, LARGE_INTEGER}, pa.int64()),
    ({int, float}, pa.float64()),
)
NESTED_TYPES: dict[object, str] = {dict: "an object", list: "a list"}
NESTED = b"nested"  # of a field's metadata: the place of the first nested value
MAX_DOCUMENT_CHARS = 2**28  # of a file that is one value, which is held in memory
PROMPT_KEYS = {"prompt", *SYNONYMS["prompt"]} - {"prompts"}
# Of an object around all rows.
LIST_KEYS = {"prompts", "data", "rows", "items", "examples", "samples"}


@dataclass(frozen=True, slots=True)
class Record:
    """The cells of a row, the line that it begins on, if any, and the length of its text."""

    line: int | None
    chars: int
    cells: Sequence[object]


@contextmanager
def open_delimited(path: Path, where: str, delimiter: str) -> Iterator[pa.RecordBatchReader]:
    """The rows of a CSV or TSV file with a header line. All cells are text, empty ones null."""
    csv.field_size_limit(MAX_FIELD_CHARS)
    with open_text(path, where) as file:
        if delimiter == ",":
            _refuse_other_separators(file, where)
        records = _iter_records(file, where, delimiter)
        header = next(records, Record(1, 0, []))
        fields = []
        for cell in header.cells:
            name = check_name(str(cell or "").strip(), where)
            fields.append(pa.field(name, pa.string()))
        yield batch_records(records, fields)


@contextmanager
def open_prompt_lines(path: Path, where: str) -> Iterator[pa.RecordBatchReader]:
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
        lines = enumerate(file, start=1)
        prompts = (
            Record(number, len(line), [line.rstrip("\r\n")])
            for number, line in lines
            if PROMPT_LINE.match(line)
        )
        yield batch_records(prompts, [pa.field("prompt", pa.string())])


def text_array(values: Sequence[Any]) -> pa.Array:
    """The texts as a column; those that are no UTF-8 keep the bytes that they came from."""
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        cells = [None if value is None else _encode(value) for value in values]
        return pa.array(cells, pa.binary()).view(pa.string())


def _encode(text: str) -> bytes:
    with suppress(UnicodeEncodeError):
        content = text.encode(errors="surrogateescape")
        if content.decode(errors="surrogateescape") == text:
            return content
    return text.encode(errors="surrogatepass")  # halves of characters, which JSON can write


@contextmanager
def open_text(path: Path, where: str) -> Iterator[TextIO]:
    """Open a text file. Raises BadInput if it is UTF-16."""
    with translate_errors(where):
        with path.open("rb") as file:
            mark = file.read(2)
        if mark in UTF16_MARKS:
            raise BadInput(f"{where}: is UTF-16. Save it as UTF-8.")
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            yield text


def check_name(name: str, where: str) -> str:
    """The name of a column. Raises BadInput if it is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{where}: the name of a column, {cut_name(name)!a}, is no UTF-8. "
            "Save the file as UTF-8."
        ) from error
    return name


def _iter_records(file: TextIO, where: str, delimiter: str) -> Iterator[Record]:
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    width: int | None = None
    line = 1
    try:
        for record in reader:
            if record:
                width = width or len(record)
                _require_width(record, width, f"{where}: line {line}")
                if reader.line_num > line:
                    _refuse_swallowed_rows(
                        record,
                        delimiter,
                        f"{where}: line {line}",
                    )
                chars = sum(map(len, record))
                yield Record(line, chars, [cell or None for cell in record])
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadInput(
            f"{where}: line {line} is malformed ({error}). Close each quotation mark, and write "
            "those inside a quoted field twice."
        ) from error


def _refuse_swallowed_rows(record: list[str], delimiter: str, line: str) -> None:
    """Raise BadInput if a quoted cell has as many separators as rows of the file.

    Prose has a space after a comma; a row has its next cell.
    """
    for cell in record:
        separators = len(re.findall(rf"{delimiter}(?=\S)", cell))
        breaks = len(cell.splitlines()) - 1
        if cell.count(delimiter) == separators == breaks * (len(record) - 1) > 0:
            raise BadInput(
                f"{line} has a quoted cell that holds other rows: {cut_name(cell)!r}. Correct its "
                "quotation marks; if it is one cell, write the table as JSON Lines or Parquet."
            )


def _refuse_other_separators(file: TextIO, where: str) -> None:
    """Raise BadInput for a header without commas but with separators of spreadsheets."""
    header = QUOTED_TEXT.sub("", next(file, ""))
    file.seek(0)
    if "," in header:
        return
    for mark, label in OTHER_SEPARATORS.items():
        if mark in header:
            raise BadInput(f"{where}: the separator seems to be {label}. Save it with commas.")


def _require_width(record: list[str], width: int, line: str) -> None:
    if len(record) != width:
        fields = pluralize(len(record), "field")
        remedy = "Put quotation marks around a field that contains the separator."
        if len(record) < width:
            remedy = "Remove the line, or add what it lacks, if only the separators."
        raise BadInput(f"{line} has {fields}, and the header has {width}. {remedy}")


def batch_records(records: Iterator[Record], fields: Sequence[pa.Field]) -> pa.RecordBatchReader:
    """The records, whose cells are those of the fields, as rows."""
    schema = pa.schema([*fields, LINE_FIELD])

    def to_batch(batch: Sequence[Record]) -> pa.RecordBatch:
        rows = [[*record.cells, record.line] for record in batch]
        columns = zip(*rows, strict=True)
        arrays = []
        for column, cells in zip(schema, columns, strict=True):
            if pa.types.is_string(column.type):
                array = text_array(cells)
            else:
                array = pa.array(cells, column.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    batches = _take_batches(records, CELL_CHARS * len(fields))
    return pa.RecordBatchReader.from_batches(schema, map(to_batch, batches))


def _take_batches(records: Iterator[Record], row_chars: int) -> Iterator[list[Record]]:
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


@dataclass(frozen=True, slots=True)
class JsonRow:
    """An object of a file with its place, such as `line 3`, and the length of its text."""

    place: str
    line: int | None
    chars: int
    values: dict[str, object]


@dataclass(frozen=True, slots=True)
class JsonColumns:
    """The columns of JSON files: the types of their values, and the first nested one."""

    kinds: dict[str, set[object]] = field(default_factory=dict)
    nested: dict[str, str] = field(default_factory=dict)

    def scan(self, path: Path, where: str) -> None:
        """Add the columns of a file. Raises BadInput if it is not JSON."""
        with open_text(path, where) as file:
            for row in _iter_rows(file, where):
                for name, value in row.values.items():
                    if name not in self.kinds:
                        self.kinds[check_name(name, where)] = set()
                    kind = _json_kind(value)
                    self.kinds[name].add(kind)
                    if kind in NESTED_TYPES:
                        problem = f"{where}: {row.place}: {name!r} is {NESTED_TYPES[kind]}"
                        self.nested.setdefault(name, problem)

    @contextmanager
    def open(self, path: Path, where: str) -> Iterator[pa.RecordBatchReader]:
        """The rows of a file that was scanned."""
        fields = []
        for name, kinds in self.kinds.items():
            column = pa.field(name, _arrow_type(kinds))
            if name in self.nested:
                problem = self.nested[name].encode(errors="replace")
                column = column.with_metadata({NESTED: problem})
            fields.append(column)
        texts = {column.name for column in fields if pa.types.is_string(column.type)}
        with open_text(path, where) as file:
            records = (self._to_record(row, texts) for row in _iter_rows(file, where))
            yield batch_records(records, fields)

    def _to_record(self, row: JsonRow, texts: set[str]) -> Record:
        """The cells of a row; in columns of text, other values as JSON."""
        cells = []
        for name in self.kinds:
            value = row.values.get(name)
            if name in texts and not isinstance(value, str | None):
                value = json.dumps(value, ensure_ascii=False)
            cells.append(value)
        return Record(row.line, row.chars, cells)


def refuse_nested(column: pa.Field, ours: str = "") -> None:
    """Raise BadInput for a column of ours with values that were nested in JSON."""
    if column.metadata and NESTED in column.metadata:
        problem = column.metadata[NESTED].decode()
        raise BadInput(f"{problem}. Write text or a number.{describe_unread(ours)}")


def _iter_rows(file: TextIO, where: str) -> Iterator[JsonRow]:
    starts = [*islice(filter(str.strip, file), 2)]
    file.seek(0)
    has_lines = not starts
    if len(starts) == 2:
        with suppress(BadInput):
            _decode(starts[0], where)
            has_lines = True
    if has_lines:
        for line, text in enumerate(file, start=1):
            if text.strip():
                value = _decode(text, where, line)
                yield _make_row(value, where, f"line {line}", line, len(text))
        return
    text = file.read(MAX_DOCUMENT_CHARS + 1)
    if len(text) > MAX_DOCUMENT_CHARS:
        raise BadInput(
            f"{where}: its first line is not JSON, or it is one list, and longer than "
            f"{MAX_DOCUMENT_CHARS} characters. Write each object on a line, as `jq -c '.[]'` does."
        )
    value = _decode(text, where)
    for number, entry in enumerate(_find_entries(value)):
        yield _make_row(entry, where, f"entry {number}", None, 0)


def _make_row(value: object, where: str, place: str, line: int | None, chars: int) -> JsonRow:
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise BadInput(
            f'{where}: {place} is not an object, such as {{"prompt": "a red circle"}}. '
            "Write one for each row."
        )
    return JsonRow(place, line, chars, value)


def _find_entries(value: object) -> list[object]:
    """The rows of a document: a list, an object around one, or objects by their ids."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict) or any(fold_name(name) in PROMPT_KEYS for name in value):
        return [value]
    for name, inner in value.items():
        if isinstance(inner, list) and fold_name(name) in LIST_KEYS:
            return inner
    if value and all(isinstance(inner, dict) for inner in value.values()):
        return [{"id": name, **inner} for name, inner in value.items()]
    return [value]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str, where: str, line: int = 1) -> object:
    """The JSON value of a text that begins on this line. Raises BadInput."""
    try:
        return _JSON_DECODER.decode(text)
    except ValueError as error:  # also of a constant, or of an integer with thousands of digits
        reason = str(error).partition(";")[0]
        if isinstance(error, json.JSONDecodeError):
            line += error.lineno - 1
            reason = f"{error.msg.removesuffix(' at')} at character {error.colno}"
        raise BadInput(f"{where}: line {line} is not JSON ({reason}). Correct it.") from error


def _json_kind(value: object) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or value in EXACT_INTEGERS:
        return type(value)
    return LARGE_INTEGER if value in INT64_RANGE else INTEGER_TEXT


def _arrow_type(kinds: set[object]) -> pa.DataType:
    kinds = kinds - {type(None)}
    for allowed, arrow_type in ARROW_TYPES:
        if kinds <= allowed:
            return arrow_type
    return pa.string()
