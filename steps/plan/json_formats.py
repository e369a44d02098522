"""Rows of JSON: an object or a text on each line, or one list of them as a whole file.

What is malformed is named by file and line.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, cast

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.column_names import SYNONYMS, describe_unread, fold_name
from imagekiln.steps.plan.text_formats import (
    CELL_CHARS,
    LINE_FIELD,
    Rows,
    check_name,
    open_text,
    take_batches,
    text_array,
)

INT64_RANGE = range(-(2**63), 2**63)
JSON_TYPE_NAMES: dict[object, str] = {dict: "an object", list: "a list"}
# Of those that a float has.
EXACT_INTEGERS = range(-(2**53) + 1, 2**53)
# The JSON types of a column's values: Python's, but for integers that no float has, or no 64 bits.
LARGE_INTEGER = "integer that no float has"
INTEGER_TEXT = "integer"
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

    def require_flat(self, names: Mapping[str, str]) -> None:
        """Raise BadInput if a value of our columns, by the table's names of them, is nested."""
        for ours, theirs in names.items():
            if theirs in self.nested:
                problem = self.nested[theirs]
                raise BadInput(f"{problem}. Write text or a number.{describe_unread(ours)}")


@contextmanager
def open_json(path: Path, where: str, columns: JsonColumns) -> Iterator[Rows]:
    """The rows of a file of JSON, whose values have the types that `scan_json` saw."""
    fields = [pa.field(name, _arrow_type(kinds)) for name, kinds in columns.kinds.items()]
    schema = pa.schema([*fields, LINE_FIELD])
    with open_text(path, where) as file:
        yield Rows(schema, _batch_objects(_iter_rows(file, where), schema))


def scan_json(path: Path, where: str, columns: JsonColumns) -> None:
    """Add a file's columns, with the types of their values. Raises BadInput where it is no JSON."""
    with open_text(path, where) as file:
        for row in _iter_rows(file, where):
            for name, value in row.values.items():
                if name not in columns.kinds:
                    check_name(name, where)
                    columns.kinds[name] = set()
                kind = _json_kind(value)
                columns.kinds[name].add(kind)
                if kind in JSON_TYPE_NAMES and name not in columns.nested:
                    label = JSON_TYPE_NAMES[kind]
                    columns.nested[name] = f"{where}: {row.place}: {name!r} is {label}"


def _iter_rows(file: TextIO, where: str) -> Iterator[JsonRow]:
    """Every row of a file, whether it is on a line of its own or in a list."""
    entries = _read_entries(file, where)
    if entries is None:
        yield from _iter_lines(file, where)
        return
    for number, entry in enumerate(entries):
        place = f"entry {number}"
        values = _require_object(entry, f"{where}: {place}")
        chars = len(str(entry))
        yield JsonRow(place, None, chars, values)


def _read_entries(file: TextIO, where: str) -> list[object] | None:
    """The rows of a file that is one value; None if it has one on each line.

    Leaves the file at its start.
    """
    first = next((line for line in file if line.strip()), "")
    is_list = first.lstrip().startswith("[")
    is_last = next((False for line in file if line.strip()), True)
    file.seek(0)
    if not is_list and not is_last and _is_json(first):
        return None
    text = file.read(MAX_DOCUMENT_CHARS + 1)
    file.seek(0)
    if len(text) > MAX_DOCUMENT_CHARS:
        raise BadInput(
            f"{where}: is one list, and longer than {MAX_DOCUMENT_CHARS} characters. Write each of "
            "its objects on a line, as `jq -c '.[]'` does."
        )
    if not is_list and not _is_json(text):
        return None  # which names the line
    try:
        return _find_entries(_JSON_DECODER.decode(text.strip()))
    except ValueError as error:
        raise BadInput(f"{where}: is not JSON ({_json_reason(error)}). Correct it.") from error


def _is_json(text: str) -> bool:
    try:
        _JSON_DECODER.decode(text.strip())
    except ValueError:
        return False
    return True


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


def _iter_lines(file: TextIO, where: str) -> Iterator[JsonRow]:
    """Every row of a JSON Lines file; blank lines are skipped."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            value = _JSON_DECODER.decode(line)
        except ValueError as error:
            raise BadInput(
                f"{where}: {place} is not JSON ({_json_reason(error)}). "
                "Write one object on each line."
            ) from error
        values = _require_object(value, f"{where}: {place}")
        yield JsonRow(place, number, len(line), values)


def _require_object(value: object, place: str) -> dict[str, object]:
    """An object as it is, and a text as that of its prompt. Raises BadInput for all else."""
    if isinstance(value, str):
        return {"prompt": value}
    if isinstance(value, dict):
        return value
    raise BadInput(
        f'{place} is not an object, such as {{"prompt": "a red circle"}}. Write one for each row.'
    )


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
    for batch in take_batches(rows, lambda row: row.chars + cell_chars):
        arrays = [
            _json_column([row.values.get(column.name) for row in batch], column.type)
            for column in schema
            if column.name != LINE_FIELD.name
        ]
        arrays.append(pa.array([row.line for row in batch], LINE_FIELD.type))
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
