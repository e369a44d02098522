"""Parquet that we own: the schema of each kind of object, and reading and writing it whole."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.columns import IDENTITY_COLUMNS, ColumnKind
from imagekiln.steps.storage.failures import error_reason, is_storage_error, translate_errors
from imagekiln.steps.storage.store import Store

COLUMN_TYPES: Mapping[ColumnKind, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "image": pa.string(),  # the SHA-256 of its file
}
IMAGE_ROW_SCHEMA = pa.schema(
    [
        pa.field("image_id", pa.string()),
        pa.field("id", pa.string()),
        pa.field("image_index", pa.int64()),
        pa.field("row", pa.int64()),
        *(pa.field(column.name, COLUMN_TYPES[column.kind]) for column in IDENTITY_COLUMNS),
        pa.field("truncated", pa.bool_()),
        pa.field("shortcuts", pa.string()),
    ]
)
OUTCOME_SCHEMA = pa.schema(
    [
        pa.field("status", pa.string()),
        pa.field("error", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("sha256", pa.string()),
        pa.field("pixels_sha256", pa.string()),
        pa.field("marks", pa.list_(pa.string())),
        pa.field("marks_reason", pa.string()),
        pa.field("contrast", pa.float32()),
        pa.field("saturation", pa.float32()),
        pa.field("phash", pa.int64()),
    ]
)
LOCATION_SCHEMA = pa.schema([pa.field("part", pa.string()), pa.field("offset", pa.int64())])
NEAR_DUPLICATE_SCHEMA = pa.schema([pa.field("near_duplicate_of", pa.string())])
IMAGE_FIELD = pa.field(
    "image", pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
)
REJECTED_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("file", pa.string()),
        pa.field("row_in_file", pa.int64()),
        pa.field("column", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
DUPLICATE_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("image_index", pa.int64()),
        pa.field("image_id", pa.string()),
        pa.field("first_row", pa.int64()),
    ]
)
RESERVED_COLUMNS = {
    *IMAGE_ROW_SCHEMA.names,
    *OUTCOME_SCHEMA.names,
    *LOCATION_SCHEMA.names,
    *NEAR_DUPLICATE_SCHEMA.names,
    IMAGE_FIELD.name,
}
# What repeats within an object is worth a dictionary; ids, prompts and hashes do not.
DICTIONARY_COLUMNS = [
    "negative_prompt", "width", "height", "steps", "guidance", "sampler", "loras", "strength", "shortcuts", "status",
    "error", "part",
]  # fmt: skip
ROW_GROUP_ROWS = 131_072  # of what is written as a stream
DAMAGE_ERRORS = (pa.ArrowException, OSError, ValueError)


def to_parquet(table: pa.Table) -> bytes:
    """The table as a whole Parquet object, with page checksums. The same table gives the same bytes."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **parquet_options(table.schema))
    return sink.getvalue()


def write_parquet(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Any number of rows as a Parquet file. The same rows give the same bytes, in whatever batches they come.

    Raises TryAgain where the disk is full.
    """
    with (
        translate_errors(str(path)),
        pq.ParquetWriter(path, schema, **parquet_options(schema)) as writer,
    ):
        for group in _row_groups(schema, batches):
            writer.write_table(group)


def _row_groups(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting = pa.Table.from_batches([], schema)
    for batch in batches:
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch]).cast(schema)])
        while waiting.num_rows >= ROW_GROUP_ROWS:
            yield waiting.slice(
                0, ROW_GROUP_ROWS
            ).combine_chunks()  # where pages end would follow the chunks
            waiting = waiting.slice(ROW_GROUP_ROWS)
    yield waiting.combine_chunks()


def parquet_options(schema: pa.Schema) -> dict[str, object]:
    """How we write Parquet."""
    repeating = [name for name in DICTIONARY_COLUMNS if name in schema.names]
    return {"compression": "zstd", "use_dictionary": repeating, "write_page_checksum": True}


def from_parquet(content: bytes, where: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a whole Parquet object of ours. Raises BadInput where its bytes are damaged."""
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
            return parquet.read(columns=columns, use_threads=False)
    except DAMAGE_ERRORS as error:
        raise damage_error(where, error) from error


def read_table(store: Store, key: str) -> pa.Table:
    """A whole table of ours. Raises Missing, or BadInput where it is damaged."""
    return from_parquet(store.read(key), store.uri_of(key))


def read_column(store: Store, key: str, name: str) -> pa.Array:
    """One column of a table of ours, the others not being read. Raises Missing, or BadInput where it is damaged."""
    return read_columns(store, key, [name])[name].combine_chunks()


def read_columns(store: Store, key: str, wanted: Sequence[str]) -> pa.Table:
    """These columns of a table of ours, in this order. Raises Missing, or BadInput where it is damaged."""
    if not store.exists(key):  # opening a name that is not there makes s3fs list
        raise Missing(f"{store.uri_of(key)}: no such file. Check the name.")
    with store.open(key) as file:
        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
                return parquet.read(columns=list(wanted), use_threads=False).select(list(wanted))
        except (*DAMAGE_ERRORS, KeyError) as error:
            if is_storage_error(error):
                raise
            raise damage_error(store.uri_of(key), error) from error


def count_rows(store: Store, key: str) -> int:
    """How many rows a table of ours has, all of them read but never held. Raises Missing, or BadInput on damage."""
    with store.open(key) as file:
        try:
            with pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False) as parquet:
                return sum(batch.num_rows for batch in parquet.iter_batches(use_threads=False))
        except DAMAGE_ERRORS as error:
            if is_storage_error(error):
                raise
            raise damage_error(store.uri_of(key), error) from error


def damage_error(where: str, error: Exception) -> BadInput:
    """What to say of an object of ours that does not read back."""
    return BadInput(f"{where}: is damaged ({error_reason(error)}). Restore or delete it.")
