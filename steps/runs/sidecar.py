"""What a sample of a tar holds, for the card: guessed from a few samples, what is null there would have no type."""

import base64
import json
from collections.abc import Iterator

import pyarrow as pa

from imagekiln.steps.job.output import Encoding, file_suffix
from imagekiln.steps.runs.tables import OUTCOME_SCHEMA

Feature = dict[str, object]


def sample_features(rows: pa.Schema, encoding: Encoding) -> list[Feature]:
    """The features of the samples of a run with these image rows."""
    told = [_named_feature(field) for field in (*rows, *OUTCOME_SCHEMA)]
    image: Feature = {"name": file_suffix(encoding).removeprefix("."), "dtype": "image"}
    texts: list[Feature] = [
        {"name": name, "dtype": "string"} for name in ("txt", "__key__", "__url__")
    ]
    return [image, {"name": "json", "struct": told}, *texts]


def _named_feature(field: pa.Field) -> Feature:
    return {"name": field.name, **_feature_of(field.type)}


def _feature_of(kind: pa.DataType) -> Feature:
    """The type of a value that went through JSON."""
    if pa.types.is_dictionary(kind):
        return _feature_of(kind.value_type)
    if pa.types.is_struct(kind):
        return {"struct": [_named_feature(field) for field in kind]}
    if pa.types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        return {"list": _feature_of(entry)["struct"]}
    if pa.types.is_nested(kind):
        inner = _feature_of(kind.value_type)
        return {"list": inner.get("dtype", inner.get("struct", inner))}
    return {"dtype": _dtype_name(kind)}


def _dtype_name(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return str(kind)
    return "float64" if pa.types.is_floating(kind) else "string"


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
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return base64.b64encode(value.as_py()).decode()
    return value.cast(pa.string()).as_py()
