"""The prompt rows as they come: strangers' Parquet made into batches of one known schema."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.plan.columns import (
    COLUMN_READERS,
    PASSTHROUGH_MARK,
    PROMPT_COLUMNS,
    Cells,
    read_passthrough,
)
from imagekiln.steps.plan.input_files import UNREADABLE_ERRORS, InputFile, unreadable_error
from imagekiln.steps.plan.input_images import ImageDigests, InputImages, holds_image_bytes
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS
from imagekiln.steps.runs.tables import REJECTED_SCHEMA

# Pages are read as they are needed: the default keeps each column chunk that was read until the file's end.
READ_BUFFER_BYTES = 2**20
BATCH_ROWS = 65_536
MIN_BATCH_ROWS = 256
BATCH_BYTES = 16 * 2**20


def prompt_schema(files: tuple[InputFile, ...]) -> pa.Schema:
    """The schema of every batch: `row`, our columns, `wrong` (the column whose value is of no use), `carry_0`..."""
    ours = [pa.field(name, ARROW_TYPES[kind]) for name, kind in PROMPT_COLUMNS.items()]
    carried = [
        pa.field(f"carry_{place}", field.type) for place, field in enumerate(files[0].passthrough)
    ]
    return pa.schema([pa.field("row", pa.int64()), *ours, pa.field("wrong", pa.string()), *carried])


ARROW_TYPES = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "picture": pa.string(),
}


def iter_prompt_batches(
    files: tuple[InputFile, ...], pictures: InputImages
) -> Iterator[pa.RecordBatch]:
    """Every row of every file, in order, numbered from 0 over all files. Raises BadInput on damage, TryAgain."""
    row, end = 0, 0
    for file in files:
        end += file.rows
        for batch in _read_file(file, row, prompt_schema(files), pictures):
            yield batch
            row += batch.num_rows
        if row != end:
            told = f"its footer says {file.rows} rows, its pages hold {row - end + file.rows}"
            raise unreadable_error(file.source, ValueError(told))


def locate_rejected_rows(files: tuple[InputFile, ...], rejected: pa.RecordBatch) -> pa.RecordBatch:
    """Rejected rows with `file` and `row_in_file`, both counted from 0, in place of the row over all files."""
    starts = np.cumsum([0, *(file.rows for file in files)])
    rows = rejected["row"].to_numpy()
    which = np.searchsorted(starts, rows, side="right") - 1
    uris = pa.DictionaryArray.from_arrays(
        pa.array(which, pa.int32()), [file.source.uri for file in files]
    )
    in_file = pa.array(rows - starts[which])
    columns = [
        rejected["row"],
        uris.cast(pa.string()),
        in_file,
        rejected["column"],
        rejected["reason"],
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REJECTED_SCHEMA)


def _read_file(
    file: InputFile, row: int, wanted: pa.Schema, pictures: InputImages
) -> Iterator[pa.RecordBatch]:
    columns = [*dict.fromkeys([*file.column_names.values(), *file.passthrough.names])]
    options = {
        "page_checksum_verification": True,
        "pre_buffer": False,
        "buffer_size": READ_BUFFER_BYTES,
    }
    try:
        with pq.ParquetFile(file.source.path, **options) as parquet:
            for batch in parquet.iter_batches(_batch_rows(file, parquet, columns), columns=columns):
                yield _convert_batch(file, batch, row, wanted, pictures)
                row += batch.num_rows
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(file.source, error) from error


def _batch_rows(file: InputFile, parquet: pq.ParquetFile, columns: list[str]) -> int:
    """Rows to read at a time: fewer where texts are long or pictures large, so that memory stays the same."""
    there = parquet.metadata
    groups = [there.row_group(number) for number in range(there.num_row_groups)]
    chunks = (group.column(place) for group in groups for place in range(there.num_columns))
    size: int = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if {(path := chunk.path_in_schema), path.partition(".")[0]} & {*columns}
    )
    held = (
        parquet.schema_arrow.field(file.column_names[name]).type
        for name in INPUT_IMAGE_COLUMNS
        if name in file.column_names
    )
    fewest = 1 if any(map(holds_image_bytes, held)) else MIN_BATCH_ROWS
    return max(fewest, min(BATCH_ROWS, BATCH_BYTES * int(there.num_rows) // max(1, size)))


def _convert_batch(
    file: InputFile, batch: pa.RecordBatch, row: int, wanted: pa.Schema, pictures: InputImages
) -> pa.RecordBatch:
    where = f"{file.source.uri}: "
    wrong = pa.nulls(batch.num_rows, pa.string())
    arrays: list[pa.Array] = [pa.array(np.arange(row, row + batch.num_rows, dtype=np.int64))]
    for ours, kind in PROMPT_COLUMNS.items():
        theirs = file.column_names.get(ours)
        if theirs is None:
            arrays.append(pa.nulls(batch.num_rows, ARROW_TYPES[kind]))
            continue
        cells: Cells | ImageDigests
        if kind == "picture":
            cells = pictures.digest_column(batch.column(theirs), file.source.uri)
        else:
            cells = COLUMN_READERS[kind](batch.column(theirs), f"{where}column {theirs!r}")
        arrays.append(cells.values)
        wrong = cells.mark_invalid(wrong, ours)
    carried: list[pa.Array] = []
    for name in file.passthrough.names:
        kept = read_passthrough(batch.column(name), f"{where}column {name!r}")
        carried.append(kept.values)
        wrong = kept.mark_invalid(wrong, PASSTHROUGH_MARK)
    return pa.RecordBatch.from_arrays([*arrays, wrong, *carried], schema=wanted)
