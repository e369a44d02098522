"""Batches of prompt rows: the rows of all input files in one schema."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.columns import PROMPT_COLUMNS, Column
from imagekiln.steps.plan.columns import (
    COLUMN_READERS,
    Cells,
    decode_dictionary,
    is_text,
    passthrough_names,
    read_passthrough,
)
from imagekiln.steps.plan.image_sql import REFERENCE_SIZE_COLUMNS
from imagekiln.steps.plan.input_files import InputFile, iter_file_columns
from imagekiln.steps.plan.input_images import InputImages
from imagekiln.steps.runs.tables import COLUMN_TYPES
from imagekiln.steps.runtime.figures import pluralize

NO_VALUE = -1
NO_VALUE_PATTERN = (
    r"(?i)^\s*(-1(\.0*)?|none|null|nan|n/?a|#n/a|undefined|auto|automatic|random|default|-)\s*$"
)
# Prompt syntax of other tools: its label, its pattern and advice on what to use instead.
SYNTAX = (
    ("nan, null or None alone", r"(?i)^\s*(none|null|nan|n/a|#n/a|undefined)\s*$", ""),
    (
        "<lora:...>",
        r"<(lora|lyco|hypernet|lora_[a-z]+):[^>]*>",
        "; for LoRAs, use the column `loras`",
    ),
    ("(word:1.3)", r"\([^()]*:\s*[0-9.]+\s*\)|\(\(|\S::-?[0-9]", ""),
    ("{prompt}", r"(?i)\{\{? *prompt *\}?\}", "; for styles, use `prompts.template`"),
    ("{a|b}", r"\{[^{}]*\|[^{}]*\}", "; for choices, use `prompts.template`"),
    (
        "__wildcard__",
        r"__[A-Za-z0-9_/*-]*[A-Za-z0-9*]__",
        "; for wildcards, use `prompts.template`",
    ),
    ("--option", r"(^|\s)--[a-z]+\b", "; for options, use columns"),
)
SYNTAX_COLUMNS = ("prompt", "negative_prompt")
ANY_SYNTAX = "|".join(f"({pattern})" for _, pattern, _ in SYNTAX)


class CellNotes:
    """Counters of cells that are read as empty, and of prompts with the syntax of other tools."""

    def __init__(self) -> None:
        """Start at zero."""
        self._syntax: Counter[str] = Counter()
        self._no_values: Counter[str] = Counter()

    def read(self, column: Column, name: str, array: pa.Array) -> pa.Array:
        """Count and return the cells of a column. Cells such as -1, none or auto become null."""
        array = decode_dictionary(array)
        has_text = is_text(array.type)
        if column.name in SYNTAX_COLUMNS and has_text:
            found = array.filter(pc.match_substring_regex(array, ANY_SYNTAX))
            for label, pattern, _ in SYNTAX if len(found) else ():
                matches = pc.match_substring_regex(found, pattern)
                self._syntax[label] += pc.sum(matches).as_py()
        is_number = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
        if column.kind not in ("integer", "number") or not (has_text or is_number):
            return array
        if has_text:
            is_empty = pc.match_substring_regex(array, NO_VALUE_PATTERN)
        else:
            is_empty = pc.equal(array.cast(pa.float64(), safe=False), NO_VALUE)
        self._no_values[name] += pc.sum(is_empty).as_py() or 0
        return pc.if_else(is_empty, pa.scalar(None, array.type), array)

    def describe(self) -> tuple[str, ...]:
        """Describe the cells read as empty, and the syntax that has no meaning here."""
        notes = [
            f"Column {name!r}: -1, none or the like in {pluralize(count, 'cell')} is read as empty."
            for name, count in self._no_values.items()
            if count
        ]
        found = [
            f"{label} ({pluralize(self._syntax[label], 'text')}{remedy})"
            for label, _, remedy in SYNTAX
            if self._syntax[label]
        ]
        if found:
            notes.append(
                "Drawn as plain text, without the meaning that it has in other tools: "
                f"{', '.join(found)}."
            )
        return tuple(notes)


def prompt_schema(files: tuple[InputFile, ...]) -> pa.Schema:
    """Build the schema of batches: `row`, PROMPT_COLUMNS, `wrong` and carried columns.

    `wrong` has the name of a column with an invalid value, and its fault. Sizes of reference images
    are present if a file has the images.
    """
    passthrough = files[0].passthrough
    sizes = () if "reference_images" in empty_columns(files) else REFERENCE_SIZE_COLUMNS
    return pa.schema(
        [
            pa.field("row", pa.int64()),
            *(pa.field(column.name, COLUMN_TYPES[column.kind]) for column in PROMPT_COLUMNS),
            *(pa.field(name, pa.int64()) for name in sizes),
            pa.field("wrong", pa.string()),
            *map(pa.field, passthrough_names(len(passthrough)), passthrough.types),
        ]
    )


def empty_columns(files: tuple[InputFile, ...]) -> tuple[str, ...]:
    """Return the prompt columns that are absent from all files."""
    present = {name for file in files for name in file.column_names}
    return tuple(column.name for column in PROMPT_COLUMNS if column.name not in present)


def iter_prompt_batches(
    files: tuple[InputFile, ...], images: InputImages, notes: CellNotes
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all files in order, numbered from 0. Updates `notes`.

    Raises BadInput if a file is damaged, TryAgain.
    """
    schema = prompt_schema(files)
    row = 0
    for file in files:
        names = dict.fromkeys([*file.column_names.values(), *file.carried])
        for batch in iter_file_columns(file, [*names]):
            columns = _read_columns(
                file,
                batch,
                images,
                notes,
            )
            columns["row"] = pa.array(np.arange(row, row + batch.num_rows, dtype=np.int64))
            yield pa.RecordBatch.from_pydict(columns, schema)
            row += batch.num_rows


def _read_columns(
    file: InputFile, batch: pa.RecordBatch, images: InputImages, notes: CellNotes
) -> dict[str, pa.Array]:
    """Convert the columns of a batch, by their internal names."""
    columns = dict.fromkeys(REFERENCE_SIZE_COLUMNS, pa.nulls(batch.num_rows, pa.int64()))
    wrong = pa.nulls(batch.num_rows, pa.string())
    for column in PROMPT_COLUMNS:
        name = file.column_names.get(column.name)
        cells = Cells(pa.nulls(batch.num_rows, COLUMN_TYPES[column.kind]))
        if name is not None and column.kind == "image":
            cells = images.digest_column(batch.column(name), file.source.uri)
        elif name is not None and column.kind == "images":
            references = images.digest_lists(batch.column(name), file.source.uri)
            sizes = (references.widths, references.heights)
            columns |= dict(zip(REFERENCE_SIZE_COLUMNS, sizes, strict=True))
            cells = references.digests
        elif name is not None:
            array = notes.read(column, name, batch.column(name))
            cells = COLUMN_READERS[column.kind](array, f"{file.source.uri}: column {name!r}")
        columns[column.name] = cells.values
        wrong = cells.mark_invalid(wrong, column.name)
    marks = passthrough_names(len(file.passthrough))
    for name, mark in zip(file.carried, marks, strict=False):
        cells = read_passthrough(batch.column(name), f"{file.source.uri}: column {name!r}")
        columns[mark] = cells.values
        wrong = cells.mark_invalid(wrong, mark)
    if file.prompt_texts is not None:
        originals = columns["prompt"]
        chosen = [file.prompt_texts.choose(prompt) for prompt in originals.to_pylist()]
        texts, outcomes = zip(*chosen, strict=True)
        columns["prompt"] = pa.array(texts, pa.string())
        columns[marks[-2]] = originals
        columns[marks[-1]] = pa.array(outcomes, pa.string())
    columns["wrong"] = wrong
    return columns
