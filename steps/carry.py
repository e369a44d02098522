"""Columns that go along untouched: of any type that can be kept, whatever they hold."""

import pyarrow as pa

from imagekiln.steps.cells import Cells, read_texts
from imagekiln.steps.errors import BadInput
from imagekiln.steps.tables import RESERVED_COLUMNS

PASSTHROUGH_MARK = "carry"  # how a row is marked whose carried text is of no use


def passthrough_schema(there: pa.Schema, columns: tuple[str, ...], where: str) -> pa.Schema:
    """The columns to carry, those of extension types as what they are stored as. Raises BadInput."""
    for name in columns:
        if name in RESERVED_COLUMNS:
            raise BadInput(f"carry: {name!r} is a column of the dataset itself. Rename it in the input.")
        if name not in there.names:
            raise BadInput(f"{where}: has no column {name!r} to carry. Correct `carry`.")
        if not _survives_duckdb(kind := _storage_type(there.field(name).type)):
            raise BadInput(f"{where}: column {name!r} is {kind}, which cannot be carried. Write it as another type.")
    return pa.schema([pa.field(name, _storage_type(there.field(name).type)) for name in columns])


def read_passthrough(array: pa.Array, where: str) -> Cells:
    """The values as they are; text that is no UTF-8 is of no use. Raises BadInput where it lies deeper."""
    array = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            raise BadInput(f"{where} has text that is no UTF-8. Correct it, or do not carry it.") from error
        found = read_texts(array, where)
        return Cells(found.values.cast(array.type), found.valid)
    return Cells(array)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _survives_duckdb(kind: pa.DataType) -> bool:
    """Whether DuckDB, in which rows are judged, gives values of this type back as they were."""
    if isinstance(kind, pa.BaseExtensionType):
        return False
    if pa.types.is_nested(kind):
        plain = not (pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind) or pa.types.is_union(kind))
        return plain and all(_survives_duckdb(kind.field(place).type) for place in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return _survives_duckdb(kind.value_type)
    lost = (pa.types.is_float16, pa.types.is_decimal256, pa.types.is_duration, pa.types.is_interval)
    return not any(is_lost(kind) for is_lost in lost)
