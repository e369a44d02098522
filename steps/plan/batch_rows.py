"""How many rows of a Parquet file are read at a time: few where values are long, or may be.

A batch is decoded whole. Of what a footer says of sizes, texts and images that repeat are left out:
their file has each once, and a batch as often as rows have it.
"""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Pages are read as they are needed: by default, pyarrow keeps every column chunk that it has read.
PARQUET_OPTIONS = {
    "page_checksum_verification": True,
    "pre_buffer": False,
    "buffer_size": 2**20,
}
BATCH_ROWS = 65_536
BATCH_BYTES = 16 * 2**20
MAX_REPEATED_BYTES = 256 * 2**20  # of a batch whose rows all have the longest of repeated values


def choose_batch_rows(path: Path, parquet: pq.ParquetFile, columns: Iterable[str]) -> int:
    """Rows of these columns to read at a time. Raises what reading a damaged file raises."""
    rows = BATCH_ROWS
    repeating: dict[int, list[str]] = {}
    chunks = _leaf_columns(parquet.metadata.schema, {*columns})
    stay_encoded = _dictionary_columns(parquet.schema_arrow)
    for group in range(parquet.metadata.num_row_groups):
        row_group = parquet.metadata.row_group(group)
        size = 0
        for index, name in chunks.items():
            chunk = row_group.column(index)
            size += int(chunk.total_uncompressed_size)
            swells = chunk.has_dictionary_page and name not in stay_encoded
            if swells and chunk.total_uncompressed_size * BATCH_ROWS > MAX_REPEATED_BYTES:
                repeating.setdefault(group, []).append(name)
        if size > 0:
            rows = min(rows, BATCH_BYTES * int(row_group.num_rows) // size)
    longest = _longest_repeated(path, repeating)
    return max(1, min(rows, MAX_REPEATED_BYTES // max(1, longest)))


def _dictionary_columns(schema: pa.Schema) -> set[str]:
    """The columns whose values are read as often as the file has them."""
    return {field.name for field in schema if pa.types.is_dictionary(field.type)}


def _leaf_columns(schema: pq.ParquetSchema, columns: set[str]) -> dict[int, str]:
    """The paths of the columns that hold the values of these, by their index."""
    paths = {index: schema.column(index).path for index in range(len(schema))}
    return {
        index: path
        for index, path in paths.items()
        if path in columns or path.partition(".")[0] in columns
    }


def _longest_repeated(path: Path, repeating: dict[int, list[str]]) -> int:
    """The bytes of the longest value in the dictionaries of these columns, by row group."""
    longest = 0
    names = [*dict.fromkeys(chain.from_iterable(repeating.values()))]
    with pq.ParquetFile(path, read_dictionary=names, **PARQUET_OPTIONS) as parquet:
        for group, columns in repeating.items():
            batch = next(parquet.iter_batches(1, row_groups=[group], columns=columns), None)
            for column in batch.columns if batch else ():
                longest = max(longest, _longest_value(column))
    return longest


def _longest_value(column: pa.Array) -> int:
    """The bytes of the longest value of a column of texts or bytes, or a struct of them."""
    kind = column.type
    if pa.types.is_struct(kind):
        return max(map(_longest_value, column.flatten()), default=0)
    if not pa.types.is_dictionary(kind):
        return 0
    values = column.dictionary
    is_text = pa.types.is_string(values.type) or pa.types.is_binary(values.type)
    return (pc.max(pc.binary_length(values)).as_py() or 0) if is_text else 0
