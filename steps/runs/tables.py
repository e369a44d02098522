"""Parquet objects of a run: the schema of each kind, and how to write and read them.

The same rows always give the same bytes. Every page has a checksum that is verified on read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import IDENTITY_COLUMNS, ColumnKind
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.passes import DRAWN_SIZE_COLUMNS, caption_names
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.row_values import json_lines
from imagekiln.steps.storage.failures import error_reason, is_storage_error, translate_errors
from imagekiln.steps.storage.store import Store

COLUMN_TYPES: Mapping[ColumnKind, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "image": pa.string(),  # the SHA-256 of its file
    "images": pa.string(),  # the SHA-256 of each file, separated by commas
}
ID_COLUMN = "image_id"
IMAGE_ROW_SCHEMA = pa.schema(
    [
        pa.field("image_id", pa.string()),
        pa.field("id", pa.string()),
        pa.field("image_index", pa.int64()),
        pa.field("input_row", pa.int64()),
        *(pa.field(column.name, COLUMN_TYPES[column.kind]) for column in IDENTITY_COLUMNS),
        pa.field("truncated", pa.bool_()),
        pa.field("shortcuts", pa.string()),
    ]
)
# Columns of rows whose images are changed by passes.
DRAWN_SIZE_SCHEMA = pa.schema([pa.field(name, pa.int64()) for name in DRAWN_SIZE_COLUMNS])
# Origin of an image: the same for all images of a run, or of one of its retries.
ORIGIN_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("model", pa.string()),
        pa.field("model_revision", pa.string()),
        # In UTC, but without a time zone: DuckDB returns time zones to Python only if pytz is
        # installed.
        pa.field("created_at", pa.timestamp("us")),
    ]
)
OUTCOME_SCHEMA = pa.schema(
    [
        pa.field("status", pa.string()),
        pa.field("error", pa.string()),
        pa.field("byte_size", pa.int64()),
        pa.field("sha256", pa.string()),
        pa.field("pixels_sha256", pa.string()),
        # Named like the items in Parquet, so that reading and writing gives the same bytes.
        pa.field("marks", pa.list_(pa.field("element", pa.string()))),
        pa.field("marks_reason", pa.string()),
        pa.field("contrast", pa.float32()),
        pa.field("saturation", pa.float32()),
        pa.field("phash", pa.int64()),
    ]
)
LOCATION_SCHEMA = pa.schema([pa.field("part", pa.string()), pa.field("byte_offset", pa.int64())])
NEAR_DUPLICATE_SCHEMA = pa.schema([pa.field("near_duplicate_of", pa.string())])
IMAGE_FIELD = pa.field(
    "image", pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
)
REJECTED_SCHEMA = pa.schema(
    [
        pa.field("input_row", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("row_in_file", pa.int64()),
        pa.field("line", pa.int64()),  # of plain text files
        pa.field("column_name", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("id", pa.string()),
        pa.field("value", pa.string()),
    ]
)
DUPLICATE_SCHEMA = pa.schema(
    [
        pa.field("input_row", pa.int64()),
        pa.field("image_index", pa.int64()),
        pa.field("image_id", pa.string()),
        pa.field("first_row", pa.int64()),
    ]
)
# Values in these columns repeat within an object. Ids, prompts and hashes do not.
DICTIONARY_COLUMNS = (
    "negative_prompt",
    "width",
    "height",
    *DRAWN_SIZE_COLUMNS,
    "steps",
    "guidance",
    "sampler",
    "loras",
    "strength",
    "shortcuts",
    *ORIGIN_SCHEMA.names,
    "status",
    "error",
    "part",
)
# Columns that a job's scores and captions add to parts and manifests.
AddedFields = Sequence[pa.Field]
ROW_GROUP_ROWS = 131_072  # in tables that are written as a stream
LOSSY_TYPES = (
    pa.types.is_float16,
    pa.types.is_decimal256,
    pa.types.is_duration,
    pa.types.is_interval,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_union,
)
MAX_SHARD_BYTES = 3 * 2**28  # of its rows in memory; a manifest has more columns


# Exceptions raised on damaged content, besides those of storage.
DAMAGE_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)


def damage_error(where: str, error: Exception) -> BadInput:
    """Build the error for an object of a run that cannot be read back."""
    reason, *_ = error_reason(error).split(". ")  # Arrow adds an explanation as a second sentence
    return BadInput(f"{where}: is damaged ({reason.rstrip('.')}). Restore or delete it.")


def parquet_options(schema: pa.Schema) -> dict[str, object]:
    """Return the Parquet writer options for a table with this schema."""
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in DICTIONARY_COLUMNS if name in schema.names],
        "write_page_checksum": True,
    }


def to_parquet(table: pa.Table) -> bytes:
    """Write the table as one Parquet object."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **parquet_options(table.schema)) as writer:
        if table.num_rows:  # some readers fail at a row group without rows
            writer.write_table(table)
    return bytes(sink.getvalue())


def write_parquet(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Write any number of rows as a Parquet file. Batch boundaries do not change its bytes.

    A file without rows has no row group, since some readers fail at an empty one. Raises TryAgain.
    """
    options = parquet_options(schema)
    with translate_errors(str(path)), pq.ParquetWriter(path, schema, **options) as writer:
        for row_group in _row_groups(schema, batches):
            writer.write_table(row_group)


def read_table(store: Store, key: str) -> pa.Table:
    """Read a whole table with any columns. Raises Missing, or BadInput if it is damaged."""
    with parse_parquet(store.read(key), store.uri_of(key)) as parquet:
        return parquet.read()


def read_column(store: Store, key: str, name: str) -> pa.Array:
    """Read only this column of a table. Raises Missing, or BadInput if it is damaged."""
    with open_parquet(store, key) as parquet:
        table = read_whole(parquet, [name])
    return table[name].combine_chunks()


def read_whole(parquet: pq.ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Read these columns of an open object, or all. Raises ValueError if one is missing.

    Arrow itself would leave it out.
    """
    missing = set(columns or ()) - set(parquet.schema_arrow.names)
    if missing:
        raise ValueError(f"the column {min(missing)} is missing")
    return parquet.read(columns=columns)


def have_same_rows(first: pa.Table, second: pa.Table) -> bool:
    """Return whether two tables have the same columns with the same values.

    Unlike in Arrow, NaN equals itself, and dictionary encodings are ignored.
    """
    if not first.schema.equals(second.schema):
        return False
    return first.equals(second) or list(json_lines(first)) == list(json_lines(second))


def can_be_carried(kind: pa.DataType) -> bool:
    """Return whether a run may carry a column of this type.

    DuckDB, which validates the rows, changes or drops values of the other types, or Arrow cannot
    filter them, as with views.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return False
    if pa.types.is_dictionary(kind):
        return can_be_carried(kind.value_type)
    if any(is_lossy(kind) for is_lossy in LOSSY_TYPES):
        return False
    if pa.types.is_nested(kind):
        children = [kind.field(index) for index in range(kind.num_fields)]
        has_names = not pa.types.is_struct(kind) or all(child.name for child in children)
        return has_names and all(can_be_carried(child.type) for child in children)
    return True


@contextmanager
def open_parquet(store: Store, key: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet object by ranged reads.

    Raises Missing, BadInput if the block finds the object damaged, or the errors of storage.
    """
    with store.open(key) as file:
        try:
            with pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=True) as parquet:
                yield parquet
        except DAMAGE_ERRORS as error:
            if is_storage_error(error):
                raise
            raise damage_error(store.uri_of(key), error) from error


@contextmanager
def parse_parquet(content: bytes, where: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet object in memory. Raises BadInput if the block finds it damaged."""
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
            yield parquet
    except DAMAGE_ERRORS as error:
        raise damage_error(where, error) from error


def _row_groups(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    pending = pa.Table.from_batches([], schema)
    for batch in batches:
        table = pa.Table.from_batches([batch]).cast(schema)
        pending = pa.concat_tables([pending, table])
        while pending.num_rows >= ROW_GROUP_ROWS:
            # Pages end at chunk boundaries, so a row group has to be one chunk.
            yield pending.slice(0, ROW_GROUP_ROWS).combine_chunks()
            pending = pending.slice(ROW_GROUP_ROWS)
    if pending.num_rows:
        yield pending.combine_chunks()


def added_fields(job: Job) -> tuple[pa.Field, ...]:
    """Return the fields of scores and captions, and with `keep` of the candidate rank."""
    fields = [pa.field(name, pa.float32()) for name in job.scores]
    if job.keep is not None:
        rank = pa.field(RANK_COLUMN, pa.int32())
        fields.append(rank)
    for name in caption_names(job.passes):
        caption = pa.field(name, pa.string())
        fields.append(caption)
    return tuple(fields)


def outcome_schema(fields: AddedFields) -> pa.Schema:
    """Return the schema of image outcomes, including these added fields."""
    return pa.schema([*OUTCOME_SCHEMA, *fields])
