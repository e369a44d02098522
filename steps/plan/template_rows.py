"""The prompts of a template as an input file: each row of a table, times what the template makes.

They are written to the disk some thousand rows at a time, and the rest of planning reads them as it
reads any file. What is drawn follows from the row and the job's seed, not from where the row is.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.job.columns import PROMPT_COLUMNS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import CHOICES_COLUMN, TEMPLATE_COLUMN, PromptTemplate
from imagekiln.steps.plan.column_readers import read_texts
from imagekiln.steps.plan.input_files import (
    InputFile,
    input_fingerprint,
    iter_file_columns,
    read_footers,
    read_input_files,
)
from imagekiln.steps.plan.source_files import SourceFile
from imagekiln.steps.plan.template_count import (
    TEMPLATE_SETTING,
    PromptRecipes,
    count_prompts,
    load_recipes,
)
from imagekiln.steps.plan.template_table import TemplateTable, read_template_table, written_columns
from imagekiln.steps.prompts.recipe import Drawing, Recipe
from imagekiln.steps.runs.tables import COLUMN_TYPES
from imagekiln.steps.storage.failures import translate_errors

# Part of what names a run: a newer version may draw otherwise.
VERSION = "imagekiln-prompts-1"
BATCH_ROWS = 4096
BATCH_BYTES = 64 * 2**20
SEED_DIGITS = 13  # 52 bits, as the seeds of rows that have none
ID_DIGITS = 12
NEGATIVE = "negative_prompt"
_Values: TypeAlias = dict[str, object]  # of the columns that are written
TYPES = {column.name: COLUMN_TYPES[column.kind] for column in PROMPT_COLUMNS}


def read_prompts(job: Job, folder: Path) -> tuple[InputFile, ...]:
    """The job's prompts as input files, once for a command; those of a template are made first.

    Files are downloaded and written to `folder`. Raises BadInput, Missing, TryAgain.
    """
    settings = job.prompts
    if not isinstance(settings, PromptTemplate):
        return read_input_files(job, folder)
    recipes = load_recipes(settings)
    table = read_template_table(job, settings, recipes, folder)
    count = count_prompts(settings, recipes, table.rows)

    maker = _RowMaker(job, settings, recipes, table)
    path = folder / "template-rows.parquet"
    _write_rows(path, maker)
    digest = _hash_content([VERSION, recipes.digest, input_fingerprint(table.files)])
    source = SourceFile(TEMPLATE_SETTING, path, digest)
    (file,) = read_footers((source,), job.columns, job.carried_columns)
    unused = table.unused_columns
    file = replace(file, unused_columns=unused, made_prompts=count.describe())
    return (file,)


def _write_rows(path: Path, maker: "_RowMaker") -> None:
    with (
        translate_errors(str(path)),
        pq.ParquetWriter(path, maker.schema) as writer,
    ):
        for batch in maker.iter_batches():
            writer.write_batch(batch)


@dataclass(frozen=True, slots=True)
class _TableRow:
    """A row of the table: its texts by column, its id, and its place in a batch.

    `texts` is None where one that a template names is empty.
    """

    index: int
    key: str
    id: str | None
    texts: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt with its negative, where it is from, and its seed; empty where a text is missing."""

    template: str
    prompt: str | None = None
    negative: str | None = None
    choices: str | None = None
    draw: int = 0


class _RowMaker:
    """Makes batches of prompt rows, of the columns `schema`."""

    def __init__(
        self, job: Job, settings: PromptTemplate, recipes: PromptRecipes, table: TemplateTable
    ) -> None:
        self._job = job
        self._recipes = recipes
        self._table = table
        self._limit = job.limits.prompt_chars + 1  # one more is too many, and shows it
        sweep = settings.sweep.values
        self._swept = tuple(sweep)
        self._cells = [*product(*sweep.values())]
        self._columns = written_columns(job, settings)
        self._has_seed = job.columns.seed in table.copied.names or "seed" in sweep
        self._is_single = recipes.combinations * len(self._cells) == 1
        self.schema = self._make_schema()

    def _make_schema(self) -> pa.Schema:
        types = {}
        for ours, theirs in self._columns.items():
            types[theirs] = TYPES[ours]
        if not self._has_seed:
            seed = self._job.columns.seed
            types[seed] = TYPES["seed"]
        if self._table.id is not None:
            types[self._table.id] = TYPES["id"]
        types[TEMPLATE_COLUMN] = pa.string()
        types[CHOICES_COLUMN] = pa.string()
        for field in self._table.copied:
            types[field.name] = _storage_type(field.type)
        return pa.schema(types)

    def iter_batches(self) -> Iterator[pa.RecordBatch]:
        """Every prompt of every row, in the order of rows, templates and combinations."""
        if not self._table.files:
            no_columns = pa.record_batch({"": pa.nulls(1)})
            row = _TableRow(0, "", None, {})
            yield from self._make_batches(no_columns, iter([row]))
            return
        for file in self._table.files:
            for batch in iter_file_columns(file, self._table.read_columns):
                yield from self._make_batches(batch, self._iter_rows(file, batch))

    def _iter_rows(self, file: InputFile, batch: pa.RecordBatch) -> Iterator[_TableRow]:
        """The rows of a batch, each with its key: its id, or else its texts."""
        names = self._table.named
        named = [_read_column(file, batch, name) for name in names]
        ids: list[str | None] = [None] * batch.num_rows
        if self._table.id is not None:
            ids = _read_column(file, batch, self._table.id)
        for index, row_id in enumerate(ids):
            texts = [column[index] for column in named]
            content = ["id", row_id]
            if row_id is None:
                content = ["texts", *texts]
            key = _hash_content(content)
            values: dict[str, str] | None = {}
            for name, text in zip(names, texts, strict=True):
                if text is None or values is None:
                    values = None
                    break
                values[name] = text
            yield _TableRow(index, key, row_id, values)

    def _make_batches(
        self, batch: pa.RecordBatch, rows: Iterator[_TableRow]
    ) -> Iterator[pa.RecordBatch]:
        copied = [_storage(batch.column(name)) for name in self._table.copied.names]
        sizes = _row_bytes(copied, batch.num_rows)
        waiting: list[tuple[int, _Values]] = []
        waiting_bytes = 0
        for row in rows:
            for values in self._iter_values(row):
                waiting.append((row.index, values))
                waiting_bytes += sizes[row.index] + _text_bytes(values)
                if len(waiting) >= BATCH_ROWS or waiting_bytes >= BATCH_BYTES:
                    yield self._assemble(waiting, copied)
                    waiting = []
                    waiting_bytes = 0
        if waiting:
            yield self._assemble(waiting, copied)

    def _assemble(self, rows: list[tuple[int, _Values]], copied: list[pa.Array]) -> pa.RecordBatch:
        """The rows as a batch: what was written for each, and what is copied from the table."""
        columns = dict(zip(self._table.copied.names, copied, strict=True))
        indices = pa.array([index for index, _ in rows])
        arrays = []
        for field in self.schema:
            if field.name in columns:
                array = columns[field.name].take(indices)
            else:
                cells = [values[field.name] for _, values in rows]
                array = pa.array(cells, field.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _iter_values(self, row: _TableRow) -> Iterator[_Values]:
        """The written columns of each prompt of a row."""
        names = self._job.columns
        for prompt in self._iter_prompts(row):
            content = [row.key, prompt.draw, prompt.prompt, prompt.negative]
            digits = _hash_content([self._job.defaults.seed, *content])
            for cell in self._cells:
                values: _Values = {
                    TEMPLATE_COLUMN: prompt.template,
                    CHOICES_COLUMN: prompt.choices,
                    names.prompt: prompt.prompt,
                    names.seed: int(digits[:SEED_DIGITS], 16),
                    names.id: self._make_id(row, [*content, prompt.template, *cell]),
                }
                if self._recipes.negative is not None:
                    values[names.negative_prompt] = prompt.negative
                for ours, value in zip(self._swept, cell, strict=True):
                    theirs = getattr(names, ours)
                    values[theirs] = value
                yield values

    def _make_id(self, row: _TableRow, content: list[object]) -> str | None:
        """The id of one prompt of a row, if that has one."""
        if row.id is None or self._is_single:
            return row.id
        digits = _hash_content(content)[:ID_DIGITS]
        return f"{row.id}-{digits}"

    def _iter_prompts(self, row: _TableRow) -> Iterator[_Prompt]:
        for recipe in self._recipes.prompts:
            for draw in range(self._recipes.draws):
                key = _hash_content([self._job.defaults.seed, row.key, draw])
                count = recipe.count * self._recipes.negatives
                for number in range(count):
                    if row.texts is None:
                        yield _Prompt(recipe.template)
                        continue
                    yield self._render(recipe, row.texts, key, number, draw)

    def _render(
        self, recipe: Recipe, texts: Mapping[str, str], key: str, number: int, draw: int
    ) -> _Prompt:
        negative = self._recipes.negative
        negatives = self._recipes.negatives
        prompt_number, negative_number = divmod(number, negatives)
        draw_key = bytes.fromhex(key)
        drawing = Drawing(draw_key, texts, self._limit)
        prompt = recipe.render(drawing, prompt_number)
        choices = drawing.chosen
        negative_prompt = None
        if negative is not None:
            drawing = Drawing(draw_key, texts, self._limit)
            negative_prompt = negative.render(drawing, negative_number, NEGATIVE)
            for name, text in drawing.chosen.items():
                choices[f"{NEGATIVE}.{name}"] = text
        listed = json.dumps(choices, ensure_ascii=False)
        return _Prompt(recipe.template, prompt, negative_prompt, listed, draw)


def _hash_content(content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _read_column(file: InputFile, batch: pa.RecordBatch, name: str) -> list[str | None]:
    """The column as texts, empty where they are no UTF-8."""
    cells = read_texts(batch.column(name), f"{file.source.uri}: column {name!r}")
    texts: list[str | None] = cells.values.to_pylist()
    return texts


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column.type, pa.BaseExtensionType) else column


def _row_bytes(columns: list[pa.Array], rows: int) -> list[int]:
    """About how many bytes the columns have in each row."""
    sizes = [8 * len(columns)] * rows
    for column in columns:
        if pa.types.is_primitive(column.type):
            continue
        for index, length in enumerate(_cell_bytes(column)):
            sizes[index] += length
    return sizes


def _text_bytes(values: _Values) -> int:
    texts = [value for value in values.values() if isinstance(value, str)]
    return sum(map(len, texts))


def _cell_bytes(column: pa.Array) -> list[int]:
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not is_text:
        return [column.slice(index, 1).nbytes for index in range(len(column))]
    lengths = pc.binary_length(column)
    cells: list[int] = pc.fill_null(lengths, 0).to_pylist()
    return cells
