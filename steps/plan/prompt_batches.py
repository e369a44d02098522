"""The rows of the input files, as batches of one known schema."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.columns import PROMPT_COLUMNS, Column
from imagekiln.steps.job.prompts import REWRITE_COLUMNS
from imagekiln.steps.plan.columns import (
    COLUMN_READERS,
    Cells,
    decode_dictionary,
    is_text,
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
from imagekiln.steps.runtime.figures import pluralize

PROMPT_INDEX = [column.name for column in PROMPT_COLUMNS].index("prompt")
NO_VALUE = -1
NO_VALUE_PATTERN = (
    r"(?i)^\s*(-1(\.0*)?|none|null|nan|n/?a|#n/a|undefined|auto|automatic|random|default|-)\s*$"
)
# Of a prompt: what is shown of it, and what to use instead, if anything.
SYNTAX = (
    ("nan, null or None alone", r"(?i)^\s*(none|null|nan|n/a|#n/a|undefined)\s*$", ""),
    (
        "<lora:...>",
        r"<(lora|lyco|hypernet|lora_[a-z]+):[^>]*>",
        "for LoRAs, use the column `loras`",
    ),
    ("(word:1.3)", r"\([^()]*:\s*[0-9.]+\s*\)|\(\(|\S::-?[0-9]", ""),
    ("{prompt}", r"(?i)\{\{? *prompt *\}?\}", "for styles, `prompts.template`"),
    ("{a|b}", r"\{[^{}]*\|[^{}]*\}", "for choices, `prompts.template`"),
    ("__wildcard__", r"__[A-Za-z0-9_/*-]*[A-Za-z0-9*]__", "for wildcards, `prompts.template`"),
    ("--option", r"(^|\s)--[a-z]+\b", "for options, columns"),
)
SYNTAX_COLUMNS = ("prompt", "negative_prompt")
ANY_SYNTAX = "|".join(f"({pattern})" for _, pattern, _ in SYNTAX)


class CellNotes:
    """Counts the cells of one reading of the input."""

    def __init__(self) -> None:
        """Begin with no cell."""
        self._syntax: Counter[str] = Counter()
        self._no_values: Counter[tuple[str, str]] = Counter()

    def read(self, column: Column, name: str, array: pa.Array) -> pa.Array:
        """Read the cells of a column, with null for texts and numbers that stand for no value."""
        array = decode_dictionary(array)
        if column.name in SYNTAX_COLUMNS and is_text(array.type):
            self._count_syntax(array)
        if column.kind not in ("integer", "number"):
            return array
        if is_text(array.type):
            is_empty = pc.match_substring_regex(array, NO_VALUE_PATTERN)
        elif pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            numbers = array.cast(pa.float64(), safe=False)
            is_empty = pc.equal(numbers, NO_VALUE)
        else:
            return array
        self._no_values[column.name, name] += pc.sum(is_empty).as_py() or 0
        null = pa.scalar(None, array.type)
        return pc.if_else(is_empty, null, array)

    def _count_syntax(self, texts: pa.Array) -> None:
        has_syntax = pc.match_substring_regex(texts, ANY_SYNTAX)
        found = texts.filter(has_syntax)
        for label, pattern, _ in SYNTAX if len(found) else ():
            matches = pc.match_substring_regex(found, pattern)
            self._syntax[label] += pc.sum(matches).as_py()

    def describe(self) -> tuple[str, ...]:
        """A sentence on cells read as empty, and one on syntax that stays plain text."""
        notes = []
        for (ours, name), count in self._no_values.items():
            if count:
                value = "a seed of its own" if ours == "seed" else "the job's own value"
                cells = "1 cell that says" if count == 1 else f"{count:,} cells that say"
                notes.append(
                    f"Column {name!r} has {cells} -1, none or the like: read as empty, so that "
                    f"each such row has {value}, the same each time."
                )
        found = {label: remedy for label, _, remedy in SYNTAX if self._syntax[label]}
        if found:
            counts = (f"{label} ({pluralize(self._syntax[label], 'text')})" for label in found)
            advice = "; ".join(filter(None, found.values()))
            notes.append(
                "Drawn as plain text, without the meaning that it has in other tools: "
                f"{', '.join(counts)}." + (f" Instead, {advice}." if advice else "")
            )
        return tuple(notes)


def prompt_schema(files: tuple[InputFile, ...]) -> pa.Schema:
    """The schema of batches: `row`, PROMPT_COLUMNS, `wrong` and carried columns.

    `wrong` is the column whose value is invalid; of an image, with its fault.
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
    """Every row of every file in order, numbered from 0. `notes` counts cells.

    Raises BadInput if a file is damaged, TryAgain.
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
    """The carried columns of the file itself."""
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
        rewritten, *origins = _rewrite(prompts, file.prompt_texts)
        arrays[PROMPT_INDEX] = rewritten
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
    """The rewritten prompts, their originals, and the outcomes."""
    rewritten = []
    outcomes = []
    for prompt in prompts.to_pylist():
        text, outcome = texts.choose(prompt)
        rewritten.append(text)
        outcomes.append(outcome)
    return [
        pa.array(rewritten, pa.string()),
        prompts,
        pa.array(outcomes, pa.string()),
    ]
