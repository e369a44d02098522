"""Conversion of image rows to Python values and to lines of JSON.

Carried columns may have any type, and times that Python cannot represent.
"""

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def json_lines(table: pa.Table) -> Iterator[bytes]:
    """Yield each row as a line of JSON. Equal tables give equal bytes. Strings stay whole."""
    names = table.column_names
    columns = map(_column_to_json, table.columns)
    for row in zip(*columns, strict=True):
        text = ENCODER.encode(dict(zip(names, row, strict=True)))
        yield text.encode() + b"\n"


def to_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert rows to Python. Columns with times beyond Python's range are as in JSON."""
    columns = map(to_values, table.columns)
    names = table.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def to_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert a column to Python values, or to JSON values if a time is beyond Python's range."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # beyond the years 1 to 9999, or nanoseconds without pandas
        return _column_to_json(column)
    return values


def _column_to_json(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Convert a column to JSON values."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_string(kind):  # most columns, and all at once
        values: list[object] = column.to_pylist()
        return values
    return list(map(_to_json_value, column))


def _to_json_value(value: pa.Scalar) -> object:
    """Convert a value for JSON: NaN to null, bytes to base64, times to ISO 8601."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return _to_json_value(value.value)
    if pa.types.is_struct(kind):
        return {name: _to_json_value(value[index]) for index, name in enumerate(kind.names)}
    if pa.types.is_nested(kind):  # a list, or a map as a list of its entries
        return [_to_json_value(item) for item in value.values]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return _to_text(value)
    plain = value.as_py()
    if isinstance(plain, bytes):
        return base64.b64encode(plain).decode()
    if isinstance(plain, float) and not math.isfinite(plain):
        return None
    return plain


def _to_text(value: pa.Scalar) -> object:
    try:
        return value.cast(pa.string()).as_py()
    except pa.ArrowInvalid:  # a time zone unknown to this machine: write UTC
        return value.cast(pa.timestamp(value.type.unit, "UTC")).cast(pa.string()).as_py()
