"""Readers of text formats: CSV, TSV, JSON, and plain text with one prompt per line.

Errors name the file and line. Invalid UTF-8 is kept in its cells, so that it rejects only its own
rows.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import pyarrow as pa

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.plan.columns import SYNONYMS, describe_unread, fold_name
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.failures import translate_errors

MAX_FIELD_CHARS = 16 * 2**20
BATCH_ROWS = 65_536
CONVERTED_ROWS = 16_384  # rows per batch
PROMPT_LINE = re.compile(r"\s*[^\s#]")  # neither blank nor a comment
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Line on which a row begins: an additional column of converted files.
LINE_FIELD = pa.field("imagekiln:line", pa.int64())
# Matches the header of a table, or the first line of JSON.
TABLE_START = re.compile(
    r'(.*[,\t;])?\W*prompts?\W*([,\t;].*)?|[{[].*".*', re.IGNORECASE | re.DOTALL
)
NESTED_TYPES: dict[type, str] = {dict: "an object", list: "a list"}
NESTED = b"nested"  # key of field metadata: the location of the first nested value
MAX_DOCUMENT_CHARS = 2**28  # of a file with a single JSON value, which is held in memory
PROMPT_KEYS = {"prompt", *SYNONYMS["prompt"]} - {"prompts"}
# Keys of an object that contains all rows as a list.
LIST_KEYS = {"prompts", "data", "rows", "items", "examples", "samples"}
# The line that a row begins on, if any, and its cells.
Record: TypeAlias = tuple[int | None, Sequence[object]]
# Location of an object, such as `line 3`, its line number, if any, and the object.
JsonRow: TypeAlias = tuple[str, int | None, dict[str, Any]]


@contextmanager
def open_delimited(path: Path, where: str, delimiter: str) -> Iterator[pa.RecordBatchReader]:
    """Open a CSV or TSV file with a header line. All cells are strings; empty cells are null."""
    csv.field_size_limit(MAX_FIELD_CHARS)
    with open_text(path, where) as file:
        records = _iter_records(file, where, delimiter)
        _, header = next(records, (1, []))
        names = [check_name(str(cell or "").strip(), where) for cell in header]
        yield batch_records(records, [pa.field(name, pa.string()) for name in names])


@contextmanager
def open_prompt_lines(path: Path, where: str) -> Iterator[pa.RecordBatchReader]:
    """Open a plain text file with one prompt per line. Raises BadInput if it looks like a table."""
    with open_text(path, where) as file:
        first = next(filter(PROMPT_LINE.match, file), "").strip()
        file.seek(0)
        if TABLE_START.fullmatch(first):
            raise BadInput(
                f"{where}: begins as a table or JSON, not with a prompt. End its name in .csv, "
                ".tsv (separated by tabs) or .json."
            )
        prompts = (
            (number, [line.rstrip("\r\n")])
            for number, line in enumerate(file, start=1)
            if PROMPT_LINE.match(line)
        )
        yield batch_records(prompts, [pa.field("prompt", pa.string())])


def text_array(values: Sequence[Any]) -> pa.Array:
    """Build a string array. Undecodable strings keep their original bytes, which are not UTF-8."""
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
    return text.encode(errors="surrogatepass")  # lone surrogates, which JSON can contain


@contextmanager
def open_text(path: Path, where: str) -> Iterator[TextIO]:
    """Open a text file. Raises BadInput if it is UTF-16."""
    with translate_errors(where):
        with path.open("rb") as file:
            if file.read(2) in UTF16_MARKS:
                raise BadInput(f"{where}: is UTF-16. Save it as UTF-8.")
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            yield text


def check_name(name: str, where: str) -> str:
    """Return the name of a column unchanged. Raises BadInput if it is not UTF-8."""
    if name.encode(errors="replace").decode() == name:
        return name
    raise BadInput(
        f"{where}: the name of a column, {cut_name(name)!a}, is no UTF-8. Save the file as UTF-8."
    )


def _iter_records(file: TextIO, where: str, delimiter: str) -> Iterator[Record]:
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    width = 0
    line = 1
    try:
        for record in reader:
            if record:
                width = width or len(record)
                _require_width(record, width, f"{where}: line {line}")
                if reader.line_num > line:
                    _refuse_swallowed_rows(record, delimiter, f"{where}: line {line}")
                yield line, [cell or None for cell in record]
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadInput(
            f"{where}: line {line} is malformed ({error}). Close each quotation mark, and write "
            "those inside a quoted field twice."
        ) from error


def _refuse_swallowed_rows(record: list[str], delimiter: str, line: str) -> None:
    """Raise BadInput if a quoted cell seems to contain further rows of the file.

    Such a cell has the separators of whole rows, and no space follows them as in prose.
    """
    for cell in record:
        separators = len(re.findall(rf"{delimiter}(?=\S)", cell))
        breaks = len(cell.splitlines()) - 1
        if cell.count(delimiter) == separators == breaks * (len(record) - 1) > 0:
            raise BadInput(
                f"{line} has a quoted cell that holds other rows: {cut_name(cell)!r}. Correct its "
                "quotation marks; if it is one cell, write the table as JSON Lines or Parquet."
            )


def _require_width(record: list[str], width: int, line: str) -> None:
    if len(record) != width:
        raise BadInput(
            f"{line} has {pluralize(len(record), 'field')}, and the header has {width}. Put "
            "quotation marks around a field that contains the separator, or add what is absent."
        )


def batch_records(records: Iterator[Record], fields: Sequence[pa.Field]) -> pa.RecordBatchReader:
    """Read records in batches. Each record has a cell per field, and LINE_FIELD is appended."""
    schema = pa.schema([*fields, LINE_FIELD])

    def iter_batches() -> Iterator[pa.RecordBatch]:
        while batch := [*islice(records, CONVERTED_ROWS)]:
            lines, rows = zip(*batch, strict=True)
            columns = [*zip(*rows, strict=True), lines]
            arrays = [
                text_array(cells) if field.type == pa.string() else pa.array(cells, field.type)
                for field, cells in zip(schema, columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, iter_batches())


class JsonColumns:
    """The columns of JSON files, with an example value of each type, and the first nested value."""

    def __init__(self) -> None:
        """Start without columns."""
        self._examples: dict[str, dict[type, Any]] = {}
        self._nested: dict[str, str] = {}

    def scan(self, path: Path, where: str) -> None:
        """Add the columns of a file. Raises BadInput if it is not JSON."""
        with open_text(path, where) as file:
            for place, _, values in _iter_rows(file, where):
                for name, value in values.items():
                    if name not in self._examples:
                        self._examples[check_name(name, where)] = {}
                    examples = self._examples[name]
                    kind = type(value)
                    if kind not in examples or (kind is int and abs(value) > abs(examples[int])):
                        examples[kind] = value
                    if kind in NESTED_TYPES and name not in self._nested:
                        self._nested[name] = f"{where}: {place}: {name!r} is {NESTED_TYPES[kind]}"

    @contextmanager
    def open(self, path: Path, where: str) -> Iterator[pa.RecordBatchReader]:
        """Open a file that was scanned. In string columns, other values are serialized as JSON."""
        fields = []
        for name, examples in self._examples.items():
            column = pa.field(name, _infer_type([*examples.values()]))
            if name in self._nested:
                problem = self._nested[name].encode(errors="replace")
                column = pa.field(name, pa.string(), metadata={NESTED: problem})
            fields.append(column)
        texts = {column.name for column in fields if pa.types.is_string(column.type)}

        def to_cell(name: str, value: object) -> object:
            if name not in texts or isinstance(value, str | None):
                return value
            return json.dumps(value, ensure_ascii=False)

        with open_text(path, where) as file:
            records = (
                (line, [to_cell(name, values.get(name)) for name in self._examples])
                for _, line, values in _iter_rows(file, where)
            )
            yield batch_records(records, fields)


def _infer_type(examples: list[object]) -> pa.DataType:
    """Infer the type of a column; string if there is no common type or integers exceed 64 bits."""
    try:
        kind = pa.array(examples).type
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return pa.string()
    return pa.string() if pa.types.is_uint64(kind) else kind


def refuse_nested(column: pa.Field, ours: str = "") -> None:
    """Raise BadInput if a column to read had nested values in JSON."""
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
                yield _make_row(
                    _decode(text, where, line),
                    where,
                    f"line {line}",
                    line,
                )
        return
    text = file.read(MAX_DOCUMENT_CHARS + 1)
    if len(text) > MAX_DOCUMENT_CHARS:
        raise BadInput(
            f"{where}: its first line is not JSON, or it is one list, and longer than "
            f"{MAX_DOCUMENT_CHARS} characters. Write each object on a line, as `jq -c '.[]'` does."
        )
    for number, entry in enumerate(_find_entries(_decode(text, where))):
        yield _make_row(
            entry,
            where,
            f"entry {number}",
            None,
        )


def _make_row(value: object, where: str, place: str, line: int | None) -> JsonRow:
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise BadInput(
            f'{where}: {place} is not an object, such as {{"prompt": "a red circle"}}. '
            "Write one for each row."
        )
    return place, line, value


def _find_entries(value: object) -> list[object]:
    """Find the rows of a JSON document: a list, an object with a list, or objects by id."""
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
    """Decode a JSON string that begins on line `line` of the file. Raises BadInput."""
    try:
        return _JSON_DECODER.decode(text)
    except ValueError as error:  # also for NaN, or an integer with thousands of digits
        reason = str(error).partition(";")[0]
        if isinstance(error, json.JSONDecodeError):
            line += error.lineno - 1
            reason = f"{error.msg.removesuffix(' at')} at character {error.colno}"
        raise BadInput(f"{where}: line {line} is not JSON ({reason}). Correct it.") from error
