"""How many rows of a Parquet file are read at a time: few where values are long, or may be.

A batch is decoded whole. Of what a footer says of sizes, texts and images that repeat are left out:
their file has each once, and a batch as often as rows have it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
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


def iter_batches(
    path: Path, parquet: pq.ParquetFile, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Every row of these columns. Raises what reading a damaged file raises."""
    batch_rows = choose_batch_rows(path, parquet, columns)
    for rows, groups in groupby(range(len(batch_rows)), key=batch_rows.__getitem__):
        batches = parquet.iter_batches(rows, row_groups=[*groups], columns=[*columns])
        yield from batches if rows == BATCH_ROWS else _join(batches)


def choose_batch_rows(path: Path, parquet: pq.ParquetFile, columns: Iterable[str]) -> list[int]:
    """Rows of these columns to read at a time, for each row group: one long value is in one."""
    metadata = parquet.metadata
    chunks = _leaf_columns(metadata.schema, {*columns})
    repeating = _repeating_columns(parquet, chunks)
    longest = _longest_repeated(path, repeating)
    choice = list[int]()
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        size = sum(int(row_group.column(index).total_uncompressed_size) for index in chunks)
        rows = BATCH_BYTES * int(row_group.num_rows) // max(1, size)
        most = MAX_REPEATED_BYTES // max(1, longest.get(group, 0))
        choice.append(max(1, min(BATCH_ROWS, rows, most)))
    return choice


def _join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches as large as may be: most are short where a few are long."""
    joined = list[pa.RecordBatch]()
    rows = size = 0
    for batch in batches:
        if joined and (size + batch.nbytes > BATCH_BYTES or rows + batch.num_rows > BATCH_ROWS):
            yield from _concatenate(joined)
            joined, rows, size = [], 0, 0
        joined.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if joined:
        yield from _concatenate(joined)


def _concatenate(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def _repeating_columns(parquet: pq.ParquetFile, chunks: dict[int, str]) -> dict[int, list[str]]:
    """The columns whose values may swell a batch, by row group."""
    metadata = parquet.metadata
    repeating: dict[int, list[str]] = {}
    stay_encoded = _dictionary_columns(parquet.schema_arrow)
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index, name in chunks.items():
            chunk = row_group.column(index)
            swells = (
                chunk.has_dictionary_page
                and chunk.physical_type == "BYTE_ARRAY"
                and name not in stay_encoded
            )
            if swells and chunk.total_uncompressed_size * BATCH_ROWS > MAX_REPEATED_BYTES:
                repeating.setdefault(group, []).append(name)
    return repeating


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


def _longest_repeated(path: Path, repeating: dict[int, list[str]]) -> dict[int, int]:
    """The bytes of the longest value in the dictionaries of these columns, by row group."""
    longest: dict[int, int] = {}
    names = [*dict.fromkeys(chain.from_iterable(repeating.values()))]
    with pq.ParquetFile(path, read_dictionary=names, **PARQUET_OPTIONS) as parquet:
        for group, columns in repeating.items():
            batch = next(parquet.iter_batches(1, row_groups=[group], columns=columns), None)
            sizes = map(_longest_value, batch.columns if batch else ())
            longest[group] = max(sizes, default=0)
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
