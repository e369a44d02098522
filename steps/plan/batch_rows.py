"""How many rows of a Parquet file are read at a time: few where values are long, or may be.

A batch is decoded whole. Of what a footer says of sizes, texts and images that repeat are left out:
their file has each once, and a batch as often as rows have it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
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
    """Rows of these columns to read at a time, for each row group: one long value is in one.

    The footer is not asked about single columns: pyarrow aborts where it contradicts itself there.
    """
    longest = _longest_repeated(path, parquet, {*columns})
    choice = list[int]()
    for group in range(parquet.metadata.num_row_groups):
        row_group = parquet.metadata.row_group(group)
        rows = BATCH_BYTES * int(row_group.num_rows) // max(1, int(row_group.total_byte_size))
        most = MAX_REPEATED_BYTES // max(1, longest[group])
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


def _longest_repeated(path: Path, parquet: pq.ParquetFile, columns: set[str]) -> list[int]:
    """The bytes of the longest value in the dictionaries of these columns, by row group."""
    groups = range(parquet.metadata.num_row_groups)
    names = _swelling_columns(parquet, columns)
    if not names:
        return [0 for _ in groups]
    longest = list[int]()
    with pq.ParquetFile(path, read_dictionary=names, **PARQUET_OPTIONS) as encoded:
        for group in groups:
            batch = next(encoded.iter_batches(1, row_groups=[group], columns=names), None)
            sizes = map(_longest_value, batch.columns if batch else ())
            longest.append(max(sizes, default=0))
    return longest


def _swelling_columns(parquet: pq.ParquetFile, columns: set[str]) -> list[str]:
    """The paths of texts and bytes in these columns, but for those that are read encoded."""
    schema = parquet.schema
    leaves = [schema.column(index) for index in range(len(schema))]
    paths = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    stay_encoded = {
        field.name for field in parquet.schema_arrow if pa.types.is_dictionary(field.type)
    }
    swelling = columns - stay_encoded
    return [path for path in paths if path in swelling or path.partition(".")[0] in swelling]


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
