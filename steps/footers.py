"""What the footers of the input say, before any row is read: columns, types and sizes."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps import carry as carried_columns
from imagekiln.steps import pictures
from imagekiln.steps.cells import COLUMN_READERS, INPUT_IMAGE_COLUMNS, PROMPT_COLUMNS
from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job import ColumnNames
from imagekiln.steps.sources import SourceFile
from imagekiln.steps.store_errors import error_reason, explain_storage_error, is_storage_error

# A row group is decoded whole, so one that claims more than this could end the process instead of failing.
MAX_ROW_GROUP_BYTES = 4 * 2**30
UNREADABLE_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, MemoryError)


@dataclass(frozen=True, slots=True)
class InputFile:
    """A source whose footer was read: how many rows it has, and the columns that we take from it."""

    source: SourceFile
    rows: int
    column_names: dict[str, str]
    passthrough: pa.Schema


def read_footers(
    sources: tuple[SourceFile, ...], columns: ColumnNames, carry: tuple[str, ...]
) -> tuple[InputFile, ...]:
    """Read every footer before any row, so that a wrong file fails early. Raises BadInput, TryAgain."""
    files = tuple(_read_footer(source, columns, carry) for source in sources)
    if not any(file.rows for file in files):
        raise BadInput(f"{sources[0].uri}: has no rows. Check `prompts`.")
    for file in files:
        if file.passthrough != files[0].passthrough:
            raise BadInput(
                f"{file.source.uri}: the columns to carry have other types than in {files[0].source.uri}. "
                "Give them one type in all files."
            )
    return files


def _read_footer(source: SourceFile, columns: ColumnNames, carry: tuple[str, ...]) -> InputFile:
    try:
        metadata = pq.read_metadata(source.path)
        there = metadata.schema.to_arrow_schema()
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(source, error) from error
    names = _match_columns(source, there, columns, carry)
    _refuse_large_row_groups(source, metadata)
    return InputFile(source, metadata.num_rows, names, carried_columns.passthrough_schema(there, carry, source.uri))


def _match_columns(
    source: SourceFile, there: pa.Schema, columns: ColumnNames, carry: tuple[str, ...]
) -> dict[str, str]:
    """What our columns are called in the file, of a type that we take."""
    if columns.prompt not in there.names:
        has = ", ".join(there.names[:12]) or "none"
        raise BadInput(f"{source.uri}: has no column {columns.prompt!r} (it has {has}). Set columns.prompt.")
    names = {ours: theirs for ours, theirs in columns if theirs in there.names}
    for name in (*names.values(), *carry):
        if there.names.count(name) > 1:
            raise BadInput(f"{source.uri}: has more than one column {name!r}. Rename one.")
    for ours, theirs in names.items():
        kind, where = there.field(theirs).type, f"{source.uri}: column {theirs!r}"
        if ours in INPUT_IMAGE_COLUMNS:
            pictures.require_image_type(kind, where)
        else:
            COLUMN_READERS[PROMPT_COLUMNS[ours]](pa.array([], kind), where)
    return names


def _refuse_large_row_groups(source: SourceFile, metadata: pq.FileMetaData) -> None:
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if not 0 <= size <= MAX_ROW_GROUP_BYTES:
            raise BadInput(f"{source.uri}: row group {group} claims {size} bytes. Write smaller row groups.")


def unreadable_error(source: SourceFile, error: Exception) -> KilnError:
    """What to say of an input file that does not read: storage failed, or the file is damaged."""
    if is_storage_error(error) and (failure := explain_storage_error(source.uri, error)):
        return failure
    if isinstance(error, MemoryError):
        return BadInput(
            f"{source.uri}: needs more memory than there is ({error_reason(error)}). Write it in smaller row groups."
        )
    return BadInput(f"{source.uri}: is no whole Parquet file ({error_reason(error)}). Write it again.")
