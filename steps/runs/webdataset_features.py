"""The features of WebDataset samples, as a dataset card declares them to Hugging Face datasets.

Without them, the reader infers types from the first samples, and a column that is null there would
have none.
"""

import pyarrow as pa

from imagekiln.steps.job.output import Encoding, file_suffix
from imagekiln.steps.runs.tables import OUTCOME_SCHEMA

Feature = dict[str, object]


def sample_features(rows: pa.Schema, encoding: Encoding) -> list[Feature]:
    """The features of the samples of a run with these image rows."""
    columns = pa.schema([*rows, *OUTCOME_SCHEMA])
    suffix = file_suffix(encoding)
    return column_features(columns, suffix)


def column_features(columns: pa.Schema, suffix: str) -> list[Feature]:
    """The features of samples whose JSON has these columns, and whose images have this suffix."""
    return [
        {"name": suffix.removeprefix("."), "dtype": "image"},
        {"name": "json", "struct": [_named_feature(field) for field in columns]},
        {"name": "txt", "dtype": "string"},
        {"name": "__key__", "dtype": "string"},
        {"name": "__url__", "dtype": "string"},
    ]


def _named_feature(field: pa.Field) -> Feature:
    return {"name": field.name, **_feature_of(field.type)}


def _feature_of(kind: pa.DataType) -> Feature:
    """The feature of a value that `sidecar.py` wrote as JSON."""
    if pa.types.is_dictionary(kind):
        return _feature_of(kind.value_type)
    if pa.types.is_struct(kind):
        return {"struct": [_named_feature(field) for field in kind]}
    if pa.types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        return {"list": _feature_of(entry)["struct"]}
    if pa.types.is_nested(kind):
        item = _feature_of(kind.value_type)
        return {"list": item.get("dtype", item.get("struct", item))}
    return {"dtype": _dtype_name(kind)}


def _dtype_name(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return str(kind)
    if pa.types.is_floating(kind):
        return "float64"
    return "string"
