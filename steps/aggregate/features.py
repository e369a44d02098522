"""The features of a dataset's files, as a dataset card declares them to Hugging Face datasets.

Without them, the reader infers the types of WebDataset samples from the first ones, and a column
that is null there would have none.
"""

from collections.abc import Callable

import pyarrow as pa

from imagekiln.steps.runs.tables import IMAGE_FIELD, OUTCOME_SCHEMA

Feature = dict[str, object]
# The names that Hugging Face datasets has for Arrow's.
FLOAT_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def part_features(rows: pa.Schema) -> list[Feature] | None:
    """The features of Parquet parts with these image rows; None if a type has no name there.

    Only declared if runs differ in their columns: then readers fill missing columns with nulls.
    """
    image: Feature = {"name": IMAGE_FIELD.name, "dtype": "image"}
    try:
        return [image, *(_named_feature(field, _in_parquet) for field in (*rows, *OUTCOME_SCHEMA))]
    except NotImplementedError:
        return None


def sample_features(columns: pa.Schema, suffix: str) -> list[Feature]:
    """The features of WebDataset samples whose JSON has these columns; `suffix` is of images."""
    return [
        {"name": suffix.removeprefix("."), "dtype": "image"},
        {"name": "json", "struct": [_named_feature(field, _in_json) for field in columns]},
        {"name": "txt", "dtype": "string"},
        {"name": "__key__", "dtype": "string"},
        {"name": "__url__", "dtype": "string"},
    ]


# Gives the feature of a type that is no dictionary, structure or list.
OtherFeature = Callable[[pa.DataType], Feature]


def _named_feature(field: pa.Field, other: OtherFeature) -> Feature:
    return {"name": field.name, **_feature_of(field.type, other)}


def _feature_of(kind: pa.DataType, other: OtherFeature) -> Feature:
    if pa.types.is_dictionary(kind):
        return _feature_of(kind.value_type, other)
    if pa.types.is_struct(kind):
        return {"struct": [_named_feature(field, other) for field in kind]}
    if pa.types.is_list(kind):
        item = _feature_of(kind.value_type, other)
        return {"list": item.get("dtype", item.get("struct", item))}
    return other(kind)


def _in_parquet(kind: pa.DataType) -> Feature:
    """The feature of a value as Arrow has it. Raises NotImplementedError."""
    if pa.types.is_floating(kind):
        return {"dtype": FLOAT_NAMES[str(kind)]}
    if pa.types.is_date32(kind):
        return {"dtype": "date32"}
    has_same_name = (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
    )
    if not has_same_name:
        raise NotImplementedError(str(kind))
    return {"dtype": str(kind)}


def _in_json(kind: pa.DataType) -> Feature:
    """The feature of a value as `json_lines` writes it: maps are lists of entries."""
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        return _feature_of(pa.list_(entries), _in_json)
    if pa.types.is_nested(kind):
        return _feature_of(pa.list_(kind.value_type), _in_json)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return {"dtype": str(kind)}
    if pa.types.is_floating(kind):
        return {"dtype": "float64"}
    return {"dtype": "string"}
