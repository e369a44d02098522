"""Rows of JSON: an object or a text on each line, or one list of them as a whole file.

What is malformed is named by file and line.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.column_names import SYNONYMS, describe_unread, fold_name
from imagekiln.steps.plan.text_formats import (
    Record,
    Rows,
    batch_records,
    check_name,
    open_text,
)

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
NESTED = b"nested"  # of a field's metadata: where the first nested value is
MAX_DOCUMENT_CHARS = 2**28  # of a file that is one value, which is held in memory
PROMPT_KEYS = {"prompt", *SYNONYMS["prompt"]} - {"prompts"}
# Of an object around all rows.
LIST_KEYS = {"prompts", "data", "rows", "items", "examples", "samples"}


@dataclass(frozen=True, slots=True)
class JsonRow:
    """An object of a file with its place, such as `line 3`, and the length of its text."""

    place: str
    line: int | None
    chars: int
    values: dict[str, object]


@dataclass(frozen=True, slots=True)
class JsonColumns:
    """The columns of JSON files: the types of their values, and where one is first nested."""

    kinds: dict[str, set[object]] = field(default_factory=dict)
    nested: dict[str, str] = field(default_factory=dict)

    def scan(self, path: Path, where: str) -> None:
        """Add the columns of a file. Raises BadInput where it is no JSON."""
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
    def open(self, path: Path, where: str) -> Iterator[Rows]:
        """The rows of a file that was scanned."""
        fields = []
        for name, kinds in self.kinds.items():
            column = pa.field(name, _arrow_type(kinds))
            if name in self.nested:
                column = column.with_metadata({NESTED: self.nested[name].encode(errors="replace")})
            fields.append(column)
        texts = {field.name for field in fields if pa.types.is_string(field.type)}
        with open_text(path, where) as file:
            records = (self._to_record(row, texts) for row in _iter_rows(file, where))
            yield batch_records(records, fields)

    def _to_record(self, row: JsonRow, texts: set[str]) -> Record:
        """The cells of a row; of the columns that are `texts`, as the JSON that they were."""
        cells = []
        for name in self.kinds:
            value = row.values.get(name)
            if name in texts and value is not None and not isinstance(value, str):
                value = json.dumps(value, ensure_ascii=False)
            cells.append(value)
        return Record(row.line, row.chars, cells)


def refuse_nested(column: pa.Field, ours: str = "") -> None:
    """Raise BadInput for a column of ours with values that were nested in JSON."""
    if column.metadata and NESTED in column.metadata:
        problem = column.metadata[NESTED].decode()
        raise BadInput(f"{problem}. Write text or a number.{describe_unread(ours)}")


def _iter_rows(file: TextIO, where: str) -> Iterator[JsonRow]:
    """Every row of a file, whether it is on a line of its own or in a list."""
    filled = filter(str.strip, file)
    starts = [*islice(filled, 2)]
    file.seek(0)
    if len(starts) == 2 and _is_json(starts[0]):
        for line, text in enumerate(file, start=1):
            if text.strip():
                value = _decode(text, where, line)
                yield _make_row(value, where, f"line {line}", line, len(text))
        return
    text = file.read(MAX_DOCUMENT_CHARS + 1)
    if not starts:
        return
    if len(text) > MAX_DOCUMENT_CHARS:
        raise BadInput(
            f"{where}: its first line is not JSON, or it is one list, and longer than "
            f"{MAX_DOCUMENT_CHARS} characters. Write each object on a line, as `jq -c '.[]'` does."
        )
    for number, entry in enumerate(_find_entries(_decode(text, where))):
        yield _make_row(entry, where, f"entry {number}", None, 0)


def _make_row(value: object, where: str, place: str, line: int | None, chars: int) -> JsonRow:
    """An object as it is, and a text as that of its prompt. Raises BadInput for all else."""
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise BadInput(
            f'{where}: {place} is not an object, such as {{"prompt": "a red circle"}}. '
            "Write one for each row."
        )
    return JsonRow(place, line, chars, value)


def _find_entries(value: object) -> list[object]:
    """The rows of a value: its own, those of the list in it, or its members by their ids."""
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


def _is_json(text: str) -> bool:
    try:
        _JSON_DECODER.decode(text)
    except ValueError:
        return False
    return True


def _decode(text: str, where: str, line: int = 1) -> object:
    """The value of a text that begins on this line. Raises BadInput where it is no JSON."""
    try:
        return _JSON_DECODER.decode(text)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        reason = f"{error.msg.removesuffix(' at')} at character {error.colno}"
        raise BadInput(f"{where}: line {line} is not JSON ({reason}). Correct it.") from error
    except ValueError as error:  # of a constant, or of an integer with thousands of digits
        reason = str(error).partition(";")[0]
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
