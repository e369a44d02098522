"""What is told of an image beside it, as one line of JSON: its settings and what became of it."""

import base64
import json
from collections.abc import Iterator

import pyarrow as pa


def sidecar_lines(told: pa.Table) -> Iterator[bytes]:
    """The line of each image of a table. The same table gives the same bytes; texts are data and stay whole."""
    for place in range(told.num_rows):
        line = {name: _to_json_value(told[name][place]) for name in told.column_names}
        yield json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _to_json_value(value: pa.Scalar) -> object:
    """A value as JSON knows it: what is not finite is null, bytes are base64, and times are ISO 8601."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return _to_json_value(value.value)
    if pa.types.is_struct(kind):
        return {name: _to_json_value(value[place]) for place, name in enumerate(kind.names)}
    if pa.types.is_nested(kind):  # a list, or a map as a list of its entries
        return [_to_json_value(each) for each in value.values]
    return _scalar_to_json(value)


def _scalar_to_json(value: pa.Scalar) -> object:
    kind = value.type
    if pa.types.is_floating(kind):
        number = value.as_py()
        return number if abs(number) < float("inf") else None
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return value.as_py()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return base64.b64encode(value.as_py()).decode()
    return value.cast(pa.string()).as_py()
