"""Parquet that we own: the schema of each kind of object, and reading and writing it whole."""

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import Store
from imagekiln.steps.store_errors import is_storage, reason

IMAGE_ROW = pa.schema(
    [
        pa.field("image_id", pa.string()),
        pa.field("id", pa.string()),
        pa.field("image_index", pa.int64()),
        pa.field("row", pa.int64()),
        pa.field("prompt", pa.string()),
        pa.field("negative_prompt", pa.string()),
        pa.field("seed", pa.int64()),
        pa.field("width", pa.int64()),
        pa.field("height", pa.int64()),
        pa.field("steps", pa.int64()),
        pa.field("guidance", pa.float64()),
        pa.field("sampler", pa.string()),
        pa.field("truncated", pa.bool_()),
    ]
)
OUTCOME = pa.schema(
    [
        pa.field("status", pa.string()),
        pa.field("error", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("sha256", pa.string()),
        pa.field("pixels_sha256", pa.string()),
    ]
)
PLACE = pa.schema([pa.field("part", pa.string()), pa.field("offset", pa.int64())])
IMAGE = pa.field("image", pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())]))
RESERVED = {*IMAGE_ROW.names, *OUTCOME.names, *PLACE.names, IMAGE.name}
# What repeats within an object is worth a dictionary; ids, prompts and hashes do not.
REPEATING = ["negative_prompt", "width", "height", "steps", "guidance", "sampler", "status", "error", "part"]
DAMAGED = (pa.ArrowException, OSError, ValueError)


def to_parquet(table: pa.Table) -> bytes:
    """The table as a whole Parquet object, with page checksums. The same table gives the same bytes."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options(table.schema))
    return sink.getvalue()


def options(schema: pa.Schema) -> dict[str, object]:
    """How we write Parquet."""
    repeating = [name for name in REPEATING if name in schema.names]
    return {"compression": "zstd", "use_dictionary": repeating, "write_page_checksum": True}


def from_parquet(content: bytes, where: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a whole Parquet object of ours. Raises BadInput where its bytes are damaged."""
    try:
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as parquet:
            return parquet.read(columns=columns, use_threads=False)
    except DAMAGED as error:
        raise damaged(where, error) from error


def read(store: Store, key: str) -> pa.Table:
    """A whole table of ours. Raises Missing, or BadInput where it is damaged."""
    return from_parquet(store.read(key), store.at(key))


def count(store: Store, key: str) -> int:
    """How many rows a table of ours has, all of them read but never held. Raises Missing, or BadInput on damage."""
    with store.open(key) as file:
        try:
            with pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=False) as parquet:
                return sum(batch.num_rows for batch in parquet.iter_batches(use_threads=False))
        except DAMAGED as error:
            if is_storage(error):
                raise
            raise damaged(store.at(key), error) from error


def damaged(where: str, error: Exception) -> BadInput:
    """What to say of an object of ours that does not read back."""
    return BadInput(f"{where}: is damaged ({reason(error)}). Restore or delete it.")
