"""The prompts of a template as an input file: each row of a table, times what the template makes.

They are written to the disk some thousand rows at a time, and the rest of planning reads them as it
reads any file. Random choices follow from the row and the job's seed, not from the row's place.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import MAX_PROMPT_CHARS, PROMPT_COLUMNS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import CHOICES_COLUMN, TEMPLATE_COLUMN, PromptList, PromptTemplate
from imagekiln.steps.plan.columns import find_spellings, plain_array, read_texts, storage_type
from imagekiln.steps.plan.input_files import (
    InputFile,
    find_unused_columns,
    input_fingerprint,
    iter_file_columns,
    read_footers,
    read_input_files,
)
from imagekiln.steps.plan.prompt_batches import NO_VALUE_PATTERN
from imagekiln.steps.plan.source_files import SourceFile, write_prompt_list
from imagekiln.steps.plan.template_recipes import (
    TEMPLATE_SETTING,
    PromptRecipes,
    Recipe,
    count_prompts,
    load_recipes,
    name_written_columns,
    read_template_table,
    written_columns,
)
from imagekiln.steps.prompts.rendering import Drawing, render
from imagekiln.steps.runs.tables import COLUMN_TYPES
from imagekiln.steps.storage.failures import translate_errors

# Part of what names a run: a newer version may draw otherwise.
VERSION = "imagekiln-prompts-1"
BATCH_ROWS = 4096
BATCH_BYTES = 64 * 2**20
SEED_DIGITS = 13  # 52 bits, as the seeds of rows that have none
ID_DIGITS = 12
NO_SEED_PATTERN = rf"{NO_VALUE_PATTERN}|^\s*$"
NEGATIVE = "negative_prompt"
TYPES = {column.name: COLUMN_TYPES[column.kind] for column in PROMPT_COLUMNS}
_Values: TypeAlias = dict[str, object]  # of the columns that are written


def read_prompts(job: Job, folder: Path) -> tuple[InputFile, ...]:
    """The job's prompts as input files; those of a template are made first, in `folder`.

    Raises BadInput, Missing, TryAgain.
    """
    settings = job.prompts
    if isinstance(settings, PromptList):
        source = write_prompt_list(job, settings, folder)
        return read_footers((source,), job.columns, job.read_columns)
    if not isinstance(settings, PromptTemplate):
        return read_input_files(job, folder)
    return (_make_prompts(job, settings, folder),)


def _make_prompts(job: Job, settings: PromptTemplate, folder: Path) -> InputFile:
    recipes = load_recipes(settings)
    table = read_template_table(job, settings, recipes, folder)
    rows = 1
    if table:
        rows = sum(file.rows for file in table)
    count = count_prompts(settings, recipes, rows)

    path = folder / "template-rows.parquet"
    names = name_written_columns(job, settings, table)
    maker = _RowMaker(names, job.defaults.seed, settings, recipes, table)
    schema = maker.schema
    with translate_errors(str(path)), pq.ParquetWriter(path, schema) as writer:
        for batch in maker.iter_batches():
            writer.write_batch(batch)
    fingerprint = input_fingerprint(table)
    digest = _hash_content(VERSION, recipes.digest, fingerprint)
    source = SourceFile(TEMPLATE_SETTING, path, digest)
    written = {ours: theirs for ours, theirs in names.items() if theirs in schema.names}
    columns = job.columns.model_copy(update=written)
    carry = job.read_columns
    (file,) = read_footers((source,), columns, carry)
    return _describe_origin(file, settings, table, count)


def _describe_origin(
    file: InputFile, settings: PromptTemplate, table: Sequence[InputFile], count: str
) -> InputFile:
    unused = find_unused_columns(table)
    swept: list[str] = []
    for ours in settings.sweep.values:
        swept += find_spellings(unused, ours)
    if swept:
        count += f"; the sweep sets {', '.join(swept)}, not the table"
    unused = tuple(name for name in unused if name not in swept)
    return replace(file, unused_columns=unused, made_prompts=count)


@dataclass(frozen=True, slots=True)
class _TableRow:
    """A row of the table: its key for draws, its id, and its texts, None if one is missing."""

    key: str
    id: str | None
    texts: Mapping[str, str] | None


class _RowMaker:
    """Makes batches of prompt rows."""

    def __init__(
        self,
        names: Mapping[str, str],
        seed: int,
        settings: PromptTemplate,
        recipes: PromptRecipes,
        table: tuple[InputFile, ...],
    ) -> None:
        self._ours = {theirs: ours for ours, theirs in names.items()}
        self._id = names["id"]
        self._seed = seed
        self._limit = MAX_PROMPT_CHARS + 1  # one more is too many, and shows it
        self._recipes = recipes
        self._table = table
        sweep = settings.sweep.values
        self._swept = [*sweep]
        combinations = product(*sweep.values())
        self._cells = [*combinations]
        prompts_of_row = recipes.combinations * len(self._cells)
        self._is_alone = prompts_of_row == 1
        self._copied = table[0].passthrough if table else pa.schema([])
        types = {}
        for ours in written_columns(settings):
            theirs = names[ours]
            types[theirs] = TYPES[ours]
        has_ids = any(self._id in file.column_names for file in table)
        if not has_ids:
            del types[self._id]
        types[TEMPLATE_COLUMN] = pa.string()
        types[CHOICES_COLUMN] = pa.string()
        for field in self._copied:
            types[field.name] = storage_type(field.type)
        self._seeds = names["seed"]
        seeds = types.setdefault(self._seeds, TYPES["seed"])
        if self._seeds in self._copied.names:  # a type that holds every seed
            is_float = pa.types.is_floating(seeds)
            types[self._seeds] = pa.float64() if is_float else pa.string()
        self.schema = pa.schema(types)

    def iter_batches(self) -> Iterator[pa.RecordBatch]:
        """Every prompt of every row, in the order of rows, templates and combinations."""
        if not self._table:
            only_row = _TableRow(key="", id=None, texts={})
            no_columns = pa.record_batch({"": pa.nulls(1)})
            yield from self._make_batches([only_row], no_columns)
        for file in self._table:
            names = dict.fromkeys([*file.column_names, *self._copied.names])
            for batch in iter_file_columns(file, [*names]):
                rows = self._read_rows(file, batch)
                copied = batch.select(self._copied.names)
                yield from self._make_batches(rows, copied)

    def _read_rows(self, file: InputFile, batch: pa.RecordBatch) -> list[_TableRow]:
        columns = {}
        for name in file.column_names:
            where = f"{file.source.uri}: column {name!r}"
            cells = read_texts(batch.column(name), where)
            columns[name] = cells.values.to_pylist()
            if name == self._id and cells.valid is not None:
                raise BadInput(f"{where} has ids that are not valid UTF-8. Save it as UTF-8.")
        named = sorted(self._recipes.columns)
        no_ids = [None] * batch.num_rows
        rows = []
        for index, row_id in enumerate(columns.get(self._id, no_ids)):
            texts = {name: columns[name][index] for name in named}
            if row_id is None:
                key = _hash_content("texts", *texts.values())
            else:
                key = _hash_content("id", row_id)
            is_whole = None not in texts.values()
            row = _TableRow(key, row_id, texts if is_whole else None)
            rows.append(row)
        return rows

    def _make_batches(
        self, rows: list[_TableRow], copied: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        copied_rows = max(1, copied.num_rows)
        copied_bytes = copied.nbytes // copied_rows
        source_chars = max(len(recipe.source) for recipe in self._recipes.prompts)
        row_bytes = copied_bytes + source_chars + 2 * MAX_PROMPT_CHARS
        most = min(BATCH_ROWS, BATCH_BYTES // row_bytes)
        most = max(1, most)
        prompts = (
            (index, values) for index, row in enumerate(rows) for values in self._iter_values(row)
        )
        while batch := [*islice(prompts, most)]:
            yield self._assemble(batch, copied)

    def _assemble(self, rows: list[tuple[int, _Values]], copied: pa.RecordBatch) -> pa.RecordBatch:
        numbers = [index for index, _ in rows]
        indices = pa.array(numbers)
        arrays = []
        for field in self.schema:
            if field.name in self._copied.names:
                column = copied.column(field.name)
                array = plain_array(column).take(indices)
                if field.name == self._seeds:
                    seeds = [values["seed"] for _, values in rows]
                    own = pa.array(seeds)
                    array = _fill_seeds(array.cast(field.type), own)
            else:
                name = self._ours.get(field.name, field.name)
                cells = [values[name] for _, values in rows]
                array = pa.array(cells, field.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _iter_values(self, row: _TableRow) -> Iterator[_Values]:
        for recipe in self._recipes.prompts:
            count = recipe.count * self._recipes.negative.count
            for draw in range(self._recipes.draws):
                for number in range(count):
                    texts = self._make_texts(row, recipe, draw, number)
                    yield from self._sweep(row, draw, texts)

    def _make_texts(self, row: _TableRow, recipe: Recipe, draw: int, number: int) -> _Values:
        """A prompt, its negative, and the choices that made them."""
        texts: _Values = dict.fromkeys(["prompt", NEGATIVE, CHOICES_COLUMN])
        texts[TEMPLATE_COLUMN] = recipe.source
        if row.texts is None:
            return texts
        key = _hash_content(self._seed, row.key, draw)
        negative = self._recipes.negative
        number, negative_number = divmod(number, negative.count)
        key_bytes = bytes.fromhex(key)
        drawing = Drawing(key_bytes, row.texts, self._limit)
        negative_drawing = replace(drawing, variables={}, chosen={})
        prompt = render(recipe.template, drawing, number)
        negative_prompt = render(negative.template, negative_drawing, negative_number, NEGATIVE)
        choices = drawing.chosen
        for name, choice in negative_drawing.chosen.items():
            path = f"{NEGATIVE}.{name}"
            choices[path] = choice
        texts["prompt"] = prompt.strip()
        texts[NEGATIVE] = negative_prompt.strip()
        most_chars = max(len(prompt), len(negative_prompt))
        if most_chars < self._limit:  # a longer text is rejected
            texts[CHOICES_COLUMN] = json.dumps(choices, ensure_ascii=False)
        return texts

    def _sweep(self, row: _TableRow, draw: int, texts: _Values) -> Iterator[_Values]:
        """The prompt with each combination of the sweep in the order of settings, with one seed."""
        prompt = texts["prompt"]
        negative_prompt = texts[NEGATIVE]
        content = (row.key, draw, prompt, negative_prompt)
        seed_digits = _hash_content(self._seed, *content)[:SEED_DIGITS]
        for cell in self._cells:
            values = dict(texts)
            values["seed"] = int(seed_digits, 16)
            values["id"] = row.id
            if row.id is not None and not self._is_alone:
                digits = _hash_content(*content, texts[TEMPLATE_COLUMN], *cell)
                values["id"] = f"{row.id}-{digits[:ID_DIGITS]}"
            swept = zip(self._swept, cell, strict=True)
            values.update(swept)
            yield values


def _fill_seeds(cells: pa.Array, own: pa.Array) -> pa.Array:
    """The table's seeds; empty cells take the prompts' own."""
    texts = cells.cast(pa.string())
    is_empty = pc.match_substring_regex(texts, NO_SEED_PATTERN)
    is_empty = pc.fill_null(is_empty, True)
    return pc.if_else(is_empty, own.cast(cells.type), cells)


def _hash_content(*content: object) -> str:
    text = json.dumps(content)
    return hashlib.sha256(text.encode()).hexdigest()
