"""The features of parts in Parquet, as a dataset card declares them to Hugging Face datasets.

Only where runs differ in their columns: then the reader fills those that a file lacks with nulls.
"""

import pyarrow as pa

from imagekiln.steps.runs.tables import IMAGE_FIELD, OUTCOME_SCHEMA

Feature = dict[str, object]
FLOAT_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


class _UnknownTypeError(Exception):
    """A type for which the library has no name."""


def part_features(rows: pa.Schema) -> list[Feature] | None:
    """The features of parts with these image rows; None where a type has no name there."""
    image: Feature = {"name": IMAGE_FIELD.name, "dtype": "image"}
    try:
        return [image, *(_named_feature(field) for field in (*rows, *OUTCOME_SCHEMA))]
    except _UnknownTypeError:
        return None


def _named_feature(field: pa.Field) -> Feature:
    return {"name": field.name, **_feature_of(field.type)}


def _feature_of(kind: pa.DataType) -> Feature:
    if pa.types.is_dictionary(kind):
        return _feature_of(kind.value_type)
    if pa.types.is_struct(kind):
        return {"struct": [_named_feature(field) for field in kind]}
    if pa.types.is_list(kind):
        item = _feature_of(kind.value_type)
        return {"list": item.get("dtype", item.get("struct", item))}
    return {"dtype": _dtype_name(kind)}


def _dtype_name(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind):
        return FLOAT_NAMES[str(kind)]
    if pa.types.is_date32(kind):
        return "date32"
    has_same_name = (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
    )
    if not has_same_name:
        raise _UnknownTypeError(str(kind))
    return str(kind)
