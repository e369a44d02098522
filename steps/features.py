"""What a sample of a tar holds, for the card: guessed from a few samples, what is null there would have no type."""

import pyarrow as pa

from imagekiln.steps import tables
from imagekiln.steps.encodings import Encoding, file_suffix

Feature = dict[str, object]


def sample_features(rows: pa.Schema, encoding: Encoding) -> list[Feature]:
    """The features of the samples of a run with these image rows."""
    told = [_named_feature(field) for field in (*rows, *tables.OUTCOME_SCHEMA)]
    image: Feature = {"name": file_suffix(encoding).removeprefix("."), "dtype": "image"}
    texts: list[Feature] = [{"name": name, "dtype": "string"} for name in ("txt", "__key__", "__url__")]
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
