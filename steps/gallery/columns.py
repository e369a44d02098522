"""The columns of a gallery's index: which of the manifests' there are, and what each may be asked.

In SQL they have names of ours, so that no text of a user's is part of a statement.
"""

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from imagekiln.steps.runs.tables import LOCATION_SCHEMA, ORIGIN_SCHEMA

ColumnKind = Literal["text", "whole", "number", "flags", "id", "run"]
RUN_COLUMN = "run_id"
ID_COLUMN = "image_id"
# Hashes of files, and what says the same of all images of a run: in a row's table, but no filter.
LEFT_OUT = {
    *ORIGIN_SCHEMA.names,
    *LOCATION_SCHEMA.names,
    ID_COLUMN,
    "sha256",
    "pixels_sha256",
    "source_image",
    "mask_image",
    "control_image",
    "reference_image",
}


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A column that images can be filtered by; `field` is its name in SQL."""

    name: str
    kind: ColumnKind
    field: str
    sql_type: str


def index_columns(schema: pa.Schema) -> dict[str, IndexColumn]:
    """The columns of the index, by name, for manifests of this schema."""
    columns = {
        RUN_COLUMN: IndexColumn(RUN_COLUMN, "run", "run", "INTEGER"),
        ID_COLUMN: IndexColumn(ID_COLUMN, "id", "image_id", "UUID"),
    }
    for number, field in enumerate(schema):
        described = _describe_type(field.type)
        if field.name in LEFT_OUT or described is None:
            continue
        kind, sql_type = described
        columns[field.name] = IndexColumn(field.name, kind, f"c{number}", sql_type)
    return columns


def manifest_columns(columns: dict[str, IndexColumn]) -> list[IndexColumn]:
    """The columns that are read from manifests as they are."""
    return [column for column in columns.values() if column.kind not in ("run", "id")]


def _describe_type(arrow_type: pa.DataType) -> tuple[ColumnKind, str] | None:
    """What a column may be asked; None for structures, bytes, other lists, what DuckDB lacks."""
    types = pa.types
    if types.is_float16(arrow_type) or types.is_decimal256(arrow_type):
        return None
    if types.is_signed_integer(arrow_type):
        return "whole", "BIGINT"
    if types.is_unsigned_integer(arrow_type):
        return "whole", "UBIGINT"
    if types.is_floating(arrow_type) or types.is_decimal(arrow_type):
        return "number", "DOUBLE"
    if types.is_list(arrow_type) and _is_text(arrow_type.value_type):
        return "flags", "VARCHAR[]"
    if types.is_dictionary(arrow_type):
        return _describe_type(arrow_type.value_type)
    if _is_text(arrow_type) or types.is_boolean(arrow_type) or types.is_temporal(arrow_type):
        return "text", "VARCHAR"
    return None


def _is_text(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_string_view(arrow_type)
    )
