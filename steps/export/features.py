"""Features of WebDataset samples, as a dataset card declares them to Hugging Face datasets.

Otherwise, the reader infers the types from the first samples, and a column that is null in them has
no type.
"""

import pyarrow as pa

Feature = dict[str, object]


def sample_features(columns: pa.Schema, suffix: str) -> list[Feature]:
    """Return the features of samples with these columns and this suffix of images."""
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
    """Return the feature of a value as `json_lines` writes it: maps are lists of entries."""
    if pa.types.is_dictionary(kind):
        return _feature_of(kind.value_type)
    if pa.types.is_struct(kind):
        return {"struct": [_named_feature(field) for field in kind]}
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        return _feature_of(pa.list_(entries))
    if pa.types.is_nested(kind):
        item = _feature_of(kind.value_type)
        return {"list": item.get("dtype", item.get("struct", item))}
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return {"dtype": str(kind)}
    if pa.types.is_floating(kind):
        return {"dtype": "float64"}
    return {"dtype": "string"}
