"""The rows of the input files, as batches of one known schema."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from imagekiln.steps.job.columns import PROMPT_COLUMNS, Column
from imagekiln.steps.job.prompts import REWRITE_COLUMNS
from imagekiln.steps.plan.cell_notes import CellNotes
from imagekiln.steps.plan.column_readers import (
    COLUMN_READERS,
    Cells,
    passthrough_names,
    read_passthrough,
)
from imagekiln.steps.plan.input_files import (
    InputFile,
    PromptTexts,
    iter_file_columns,
    unreadable_error,
)
from imagekiln.steps.plan.input_images import ImageDigests, InputImages
from imagekiln.steps.runs.tables import COLUMN_TYPES

PROMPT_INDEX = [column.name for column in PROMPT_COLUMNS].index("prompt")


def prompt_schema(files: tuple[InputFile, ...]) -> pa.Schema:
    """The schema of every batch of rows.

    `row`, PROMPT_COLUMNS, `wrong` (the column whose value is invalid, of an image with its fault),
    and the columns of `passthrough_names`.
    """
    passthrough = files[0].passthrough
    return pa.schema(
        [
            pa.field("row", pa.int64()),
            *(pa.field(column.name, COLUMN_TYPES[column.kind]) for column in PROMPT_COLUMNS),
            pa.field("wrong", pa.string()),
            *map(pa.field, passthrough_names(len(passthrough)), passthrough.types),
        ]
    )


def empty_columns(files: tuple[InputFile, ...]) -> tuple[str, ...]:
    """The prompt columns that no file has."""
    present = {name for file in files for name in file.column_names}
    return tuple(column.name for column in PROMPT_COLUMNS if column.name not in present)


def iter_prompt_batches(
    files: tuple[InputFile, ...], images: InputImages, notes: CellNotes
) -> Iterator[pa.RecordBatch]:
    """Every row of every file, in order, numbered from 0 over all files. `notes` counts cells.

    Raises BadInput where a file is damaged, TryAgain where storage fails.
    """
    schema = prompt_schema(files)
    row = 0
    for file in files:
        first_row = row
        carried = _read_passthrough_names(file)
        names = dict.fromkeys([*file.column_names.values(), *carried])
        for batch in iter_file_columns(file, [*names]):
            yield _convert_batch(file, batch, row, schema, images, notes)
            row += batch.num_rows
        if row - first_row != file.rows:
            reason = f"its footer says {file.rows} rows, its pages hold {row - first_row}"
            raise unreadable_error(file.source, ValueError(reason))


def _read_passthrough_names(file: InputFile) -> list[str]:
    """The carried columns that are read, without those that say what a prompt was."""
    names: list[str] = file.passthrough.names
    return names if file.prompt_texts is None else names[: -len(REWRITE_COLUMNS)]


def _convert_batch(
    file: InputFile,
    batch: pa.RecordBatch,
    first_row: int,
    schema: pa.Schema,
    images: InputImages,
    notes: CellNotes,
) -> pa.RecordBatch:
    end = first_row + batch.num_rows
    numbers = np.arange(first_row, end, dtype=np.int64)
    rows = pa.array(numbers)
    wrong = pa.nulls(batch.num_rows, pa.string())
    arrays: list[pa.Array] = []
    for column in PROMPT_COLUMNS:
        cells = _read_column(file, batch, column, images, notes)
        arrays.append(cells.values)
        wrong = cells.mark_invalid(wrong, column.name)
    carried: list[pa.Array] = []
    names = _read_passthrough_names(file)
    marks = passthrough_names(len(names))
    for name, mark in zip(names, marks, strict=True):
        where = f"{file.source.uri}: column {name!r}"
        passthrough = read_passthrough(batch.column(name), where)
        carried.append(passthrough.values)
        wrong = passthrough.mark_invalid(wrong, mark)
    if file.prompt_texts is not None:
        prompts = arrays[PROMPT_INDEX]
        arrays[PROMPT_INDEX], *origins = _rewrite(prompts, file.prompt_texts)
        carried += origins
    columns = [rows, *arrays, wrong, *carried]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_column(
    file: InputFile,
    batch: pa.RecordBatch,
    column: Column,
    images: InputImages,
    notes: CellNotes,
) -> Cells | ImageDigests:
    """The cells of one of our columns, null where the file has none."""
    name = file.column_names.get(column.name)
    if name is None:
        kind = COLUMN_TYPES[column.kind]
        empty = pa.nulls(batch.num_rows, kind)
        return Cells(empty)
    array = batch.column(name)
    if column.kind == "image":
        return images.digest_column(array, file.source.uri)
    where = f"{file.source.uri}: column {name!r}"
    array = notes.read(column, name, array)
    return COLUMN_READERS[column.kind](array, where)


def _rewrite(prompts: pa.Array, texts: PromptTexts) -> list[pa.Array]:
    """The prompts that are drawn, and the columns that say of what they were made, and how."""
    drawn = []
    outcomes = []
    for prompt in prompts.to_pylist():
        text, outcome = texts.choose(prompt)
        drawn.append(text)
        outcomes.append(outcome)
    return [
        pa.array(drawn, pa.string()),
        prompts,
        pa.array(outcomes, pa.string()),
    ]
