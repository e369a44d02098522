"""Rows of CSV, TSV and JSON Lines, read line by line.

What is malformed is named by file and line. Bytes that are no UTF-8 stay in their cells, so that
they cost their own rows and no others.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar, cast

import pyarrow as pa

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.storage.failures import translate_errors

MAX_FIELD_CHARS = 16 * 2**20
BATCH_ROWS = 65_536
BATCH_CHARS = 16 * 2**20
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
QUOTED_TEXT = re.compile('"[^"]*("|$)')
OTHER_SEPARATORS = {";": "';'", "\t": "a tab"}
INT64_RANGE = range(-(2**63), 2**63)
JSON_TYPE_NAMES = {dict: "an object", list: "a list"}
# What a cell takes in memory beside its characters, so that many empty ones are counted too.
CELL_CHARS = 4
# Of those that a float has.
EXACT_INTEGERS = range(-(2**53) + 1, 2**53)
# The JSON types of a column's values: Python's, but for integers that no float has, or no 64 bits.
LARGE_INTEGER = "integer that no float has"
INTEGER_TEXT = "integer"
JsonKinds = dict[str, set[object]]
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file, as batches of one schema."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class JsonRow:
    """The object in a line of a JSON Lines file, with the number and the length of the line."""

    line: int
    chars: int
    values: dict[str, object]


@contextmanager
def open_delimited(path: Path, where: str, delimiter: str) -> Iterator[Rows]:
    """The rows of a CSV or TSV file with a header line. All cells are text, empty ones null."""
    with _open_text(path, where) as file, _field_limit(MAX_FIELD_CHARS):
        if delimiter == ",":
            _refuse_other_separators(file, where)
        records = _iter_records(file, where, delimiter)
        header = next(records, [])
        names = [_check_name(name.strip(), where) for name in header]
        schema = pa.schema([pa.field(name, pa.string()) for name in names])
        yield Rows(schema, _batch_records(records, schema))


@contextmanager
def open_json_lines(path: Path, where: str, kinds: JsonKinds) -> Iterator[Rows]:
    """The rows of a JSON Lines file, whose values have the types that `scan_json_lines` saw."""
    schema = pa.schema([pa.field(name, _arrow_type(kind)) for name, kind in kinds.items()])
    with _open_text(path, where) as file:
        yield Rows(schema, _batch_objects(_iter_objects(file, where), schema))


def scan_json_lines(path: Path, where: str, flat: frozenset[str], kinds: JsonKinds) -> None:
    """Add a file's columns to `kinds`, with the types of their values.

    Raises BadInput for a line that is no object, or that nests values in one of the columns `flat`.
    """
    with _open_text(path, where) as file:
        for row in _iter_objects(file, where):
            for name, value in row.values.items():
                if name in flat and isinstance(value, dict | list):
                    label = JSON_TYPE_NAMES[type(value)]
                    raise BadInput(
                        f"{where}: line {row.line}: {name!r} is {label}. Write text or a number."
                    )
                if name not in kinds:
                    kinds[_check_name(name, where)] = set()
                kinds[name].add(_json_kind(value))


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
def _open_text(path: Path, where: str) -> Iterator[TextIO]:
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


def _check_name(name: str, where: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{where}: the name of a column, {cut_name(name)!a}, is no UTF-8. "
            "Save the file as UTF-8."
        ) from error
    return name


def _iter_records(file: TextIO, where: str, delimiter: str) -> Iterator[list[str]]:
    """The records of a CSV file, the header first; blank lines are skipped."""
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    width: int | None = None
    first_line = 1
    try:
        for record in reader:
            if record:
                width = width or len(record)
                _require_width(record, width, f"{where}: line {first_line}")
                yield record
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise _csv_error(where, first_line, str(error)) from error


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
        raise BadInput(
            f"{line} has {fields}, and the header has {width}. "
            "Put quotation marks around a field that contains the separator."
        )


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


def _batch_records(records: Iterator[list[str]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in _take_batches(records, _count_record_chars):
        columns = zip(*batch, strict=True)
        arrays = [text_array([cell or None for cell in column]) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _count_record_chars(record: list[str]) -> int:
    return sum(map(len, record)) + CELL_CHARS * len(record)


def _iter_objects(file: TextIO, where: str) -> Iterator[JsonRow]:
    """Every object of a JSON Lines file; blank lines are skipped."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            values = _JSON_DECODER.decode(line)
        except ValueError as error:
            raise BadInput(
                f"{where}: line {number} is not JSON ({_json_reason(error)}). "
                "Write one object on each line."
            ) from error
        if not isinstance(values, dict):
            raise BadInput(
                f"{where}: line {number} is not an object, such as "
                '{"prompt": "a red circle"}. Write one on each line.'
            )
        yield JsonRow(number, len(line), values)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at character {error.colno}"
    return str(error).partition(";")[0]


def _json_kind(value: object) -> object:
    if not isinstance(value, int) or isinstance(value, bool) or value in EXACT_INTEGERS:
        return type(value)
    return LARGE_INTEGER if value in INT64_RANGE else INTEGER_TEXT


def _arrow_type(kinds: set[object]) -> pa.DataType:
    kinds = kinds - {type(None)}
    if not kinds:
        return pa.null()
    if kinds == {bool}:
        return pa.bool_()
    if kinds <= {int, LARGE_INTEGER}:
        return pa.int64()
    if kinds <= {int, float}:
        return pa.float64()
    return pa.string()


def _batch_objects(rows: Iterator[JsonRow], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    cell_chars = CELL_CHARS * len(schema)
    # Values that are nested, and names, take memory too: the whole line counts.
    for batch in _take_batches(rows, lambda row: row.chars + cell_chars):
        arrays = [
            _json_column([row.values.get(field.name) for row in batch], field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _json_column(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return text_array([*map(_json_text, values)])
    if pa.types.is_floating(kind):
        numbers = cast("Sequence[float | None]", values)
        values = [None if number is None else float(number) for number in numbers]
    return pa.array(values, kind)


def _json_text(value: object) -> str | None:
    """Text as it is, anything else as the JSON that it was."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _take_batches(rows: Iterator[Row], count_chars: Callable[[Row], int]) -> Iterator[list[Row]]:
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
