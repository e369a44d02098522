"""Input files made from prompt templates: each template is rendered for each row of a table.

Prompts are written to the local disk in batches, and the rest of planning reads this file like any
other. Random choices depend on the row's content and the job's seed, not on the row's position.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import INPUT_IMAGE_COLUMNS, MAX_PROMPT_CHARS, PROMPT_COLUMNS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import (
    CHOICES_COLUMN,
    RECIPE_COLUMNS,
    TEMPLATE_COLUMN,
    PromptList,
    PromptTemplate,
    RunPrompts,
)
from imagekiln.steps.plan.columns import (
    OUR_NAMES,
    describe_unread,
    plain_array,
    read_texts,
)
from imagekiln.steps.plan.input_files import (
    InputFile,
    find_unused_columns,
    input_fingerprint,
    iter_file_columns,
    read_footer,
    read_footers,
    read_input_files,
    require_rows,
)
from imagekiln.steps.plan.prompt_batches import NO_VALUE_PATTERN
from imagekiln.steps.plan.source_files import (
    SourceFile,
    convert_sources,
    gather_sources,
    write_prompt_list,
)
from imagekiln.steps.plan.source_runs import run_columns, wanted_columns, write_run_table
from imagekiln.steps.prompts.parser import Mode, parse_template
from imagekiln.steps.prompts.rendering import Drawing, render
from imagekiln.steps.prompts.template import MAX_COUNT, Template, TemplateMistake, count_texts
from imagekiln.steps.prompts.wildcards import WildcardFiles
from imagekiln.steps.runs.tables import COLUMN_TYPES
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.failures import translate_errors

TEMPLATE_SETTING = "prompts.template"
NEGATIVE_SETTING = "prompts.negative_template"
# Part of the run id, since another version may choose differently.
VERSION = "imagekiln-prompts-1"
BATCH_ROWS = 4096
SEED_DIGITS = 13  # 52 bits, like derived seeds of rows
ID_DIGITS = 12
NO_SEED_PATTERN = rf"{NO_VALUE_PATTERN}|^\s*$"
NEGATIVE = "negative_prompt"
TYPES = {column.name: COLUMN_TYPES[column.kind] for column in PROMPT_COLUMNS}
_Values: TypeAlias = dict[str, object]  # values of a prompt row, by column


@dataclass(frozen=True, slots=True)
class Recipe:
    """A parsed template with its source, and the number of prompts that it makes."""

    source: str
    template: Template
    count: int


@dataclass(frozen=True, slots=True)
class PromptRecipes:
    """The templates of a job, and the table columns that they name.

    Each template is rendered `draws` times per row. `digest` is a hash of the wildcard files.
    """

    prompts: tuple[Recipe, ...]
    negative: Recipe
    columns: tuple[str, ...]
    draws: int
    digest: str

    @property
    def combinations(self) -> int:
        """Number of prompts per row of the table, before the sweep."""
        counts = [recipe.count for recipe in self.prompts]
        return self.draws * self.negative.count * sum(counts)


def load_recipes(settings: PromptTemplate) -> PromptRecipes:
    """Read the templates and their wildcard files. Raises BadInput, Missing, TryAgain."""
    wildcards = WildcardFiles(settings.wildcards)
    mode: Mode = "all" if settings.combinations == "all" else "random"

    def load(source: str, setting: str) -> Recipe:
        try:
            template = parse_template(source, wildcards, mode)
        except TemplateMistake as mistake:
            raise BadInput(f"{setting}, {mistake}.") from mistake
        return Recipe(source, template, count_texts(template))

    return PromptRecipes(
        prompts=tuple(load(source, TEMPLATE_SETTING) for source in settings.templates),
        negative=load(settings.negative_template or "", NEGATIVE_SETTING),
        columns=tuple(sorted(wildcards.columns)),
        draws=1 if settings.combinations == "all" else settings.combinations,
        digest=wildcards.digest,
    )


def count_prompts(settings: PromptTemplate, recipes: PromptRecipes, rows: int) -> str:
    """Describe the number of prompts for a table of `rows` rows, with its factors.

    Raises BadInput if the number exceeds `most_prompts`.
    """
    combinations = recipes.combinations
    swept = prod(map(len, settings.sweep.values.values()))
    prompts = combinations * rows * swept
    least = "at least " if combinations >= MAX_COUNT else ""
    factors = f"{combinations:,} combinations x {rows:,} rows x {swept:,} settings"
    count = f"{least}{pluralize(prompts, 'prompt')} ({factors})"
    if prompts > settings.most_prompts:
        raise BadInput(
            f"{TEMPLATE_SETTING}: makes {count}, and at most "
            f"{settings.most_prompts:,} are allowed. Set prompts.combinations to how many are "
            "drawn for each row."
        )
    return count


def read_prompts(job: Job, folder: Path) -> tuple[InputFile, ...]:
    """Read the job's prompts as input files. Prompts of a template are first made in `folder`.

    Raises BadInput, Missing, TryAgain.
    """
    settings = job.prompts
    if job.source_run is not None:
        job = job.model_copy(update={"columns": run_columns(job)})
    if isinstance(settings, RunPrompts):
        source = write_run_table(settings.run, folder)
        wanted = wanted_columns(job.columns)
        return read_footers((source,), job.columns, job.read_columns, wanted)
    if isinstance(settings, PromptTemplate):
        return (_make_prompts(job, settings, folder),)
    if isinstance(settings, PromptList):
        source = write_prompt_list(job, settings, folder)
        return read_footers((source,), job.columns, job.read_columns)
    return read_input_files(job, folder)


def _make_prompts(job: Job, settings: PromptTemplate, folder: Path) -> InputFile:
    recipes = load_recipes(settings)
    table = _read_table(job, settings, recipes, folder)
    count = count_prompts(settings, recipes, sum(file.rows for file in table) if table else 1)
    maker = _PromptMaker(job, settings, recipes, table)
    path = folder / "template-rows.parquet"
    batches = maker.iter_batches()
    first = next(batches)
    with translate_errors(str(path)), pq.ParquetWriter(path, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
    digest = _hash_content(VERSION, recipes.digest, input_fingerprint(table))
    runs = table[0].source.runs if table else ()
    source = SourceFile(TEMPLATE_SETTING, path, digest, runs=runs)
    columns = job.columns.model_copy(update=maker.written)
    wanted = OUR_NAMES if settings.run is None else [*maker.written, *wanted_columns(job.columns)]
    (file,) = read_footers((source,), columns, job.read_columns, wanted)
    unused = [name for name in find_unused_columns(table) if name not in recipes.columns]
    return replace(file, unused_columns=tuple(unused), made_prompts=count)


def _read_table(
    job: Job, settings: PromptTemplate, recipes: PromptRecipes, folder: Path
) -> tuple[InputFile, ...]:
    """Read the footers of the table's files. Their `passthrough` are the columns to copy."""
    if settings.table is None and settings.run is None:
        if recipes.columns:
            raise BadInput(
                f"{TEMPLATE_SETTING}: names column {recipes.columns[0]!r}, and there is no "
                "table. Set prompts.table."
            )
        return ()
    written = _written_columns(settings)
    for name in job.carry:
        if name in {getattr(job.columns, ours) for ours in written}:
            raise BadInput(
                f"carry: {name!r} is a column that templates write. Rename it in the table."
            )
    readable: Sequence[str] = OUR_NAMES
    if settings.run is None:
        sources = convert_sources(gather_sources(settings.table_patterns, folder), folder)
    else:
        sources = (write_run_table(settings.run, folder),)
        readable = wanted_columns(job.columns)
    wanted = ["id", *(ours for ours in readable if ours not in written)]
    files = tuple(_read_file(job, source, wanted, recipes.columns) for source in sources)
    require_rows(files)
    first = files[0]
    for file in files:
        if (file.passthrough, file.column_names) != (first.passthrough, first.column_names):
            raise BadInput(
                f"{file.source.uri}: the columns that are read are not those of "
                f"{first.source.uri}, or of other types. Give all files the same."
            )
    return files


def _written_columns(settings: PromptTemplate) -> list[str]:
    """Return the prompt columns that are written for each prompt."""
    names = ["prompt", "id", *settings.sweep.values]
    return names if settings.negative_template is None else [*names, NEGATIVE]


def _read_file(
    job: Job, source: SourceFile, wanted: list[str], named: tuple[str, ...]
) -> InputFile:
    carry = tuple(name for name in job.carry if name not in RECIPE_COLUMNS)
    file, schema = read_footer(
        source,
        job.columns,
        carry,
        wanted,
        named,
    )
    copied = {field.name: field for field in file.passthrough}
    for ours, theirs in file.column_names.items():
        if ours in INPUT_IMAGE_COLUMNS and job.source_run is None:
            # The paths that a cell may reference depend on the location of its table.
            raise BadInput(
                f"{source.uri}: column {theirs!r} has input images, which templates do not take. "
                f"Write the prompts into a table.{describe_unread(ours)}"
            )
        if ours != "id":
            copied.setdefault(theirs, schema.field(theirs))
    return replace(file, passthrough=pa.schema([*copied.values()]))


@dataclass(frozen=True, slots=True)
class _TableRow:
    """A table row: its key for random draws, its id, and its strings; None if one is missing."""

    key: str
    id: str | None
    texts: Mapping[str, str] | None


class _PromptMaker:
    """Builder of prompt rows in batches.

    `written` maps the prompt columns that it writes to their names in the file.
    """

    def __init__(
        self,
        job: Job,
        settings: PromptTemplate,
        recipes: PromptRecipes,
        table: tuple[InputFile, ...],
    ) -> None:
        self._seed = job.defaults.seed
        self._recipes = recipes
        self._table = table
        self._swept = [*settings.sweep.values]
        self._cells = [*product(*settings.sweep.values.values())]
        self._is_alone = recipes.combinations * len(self._cells) == 1
        self._copied: list[str] = table[0].passthrough.names if table else []
        found = table[0].column_names if table else {}
        self._id = found.get("id")
        written = [*dict.fromkeys([*_written_columns(settings), "seed"])]
        if self._id is None:
            written.remove("id")
        self.written = {
            ours: found.get(ours) or getattr(job.columns, ours) or f"imagekiln:{ours}"
            for ours in written
        }

    def iter_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all prompts, ordered by row, template and combination."""
        if not self._table:
            only_row = _TableRow(key="", id=None, texts={})
            yield from self._make_batches([only_row], pa.record_batch({}))
        for file in self._table:
            ids = [] if self._id is None else [self._id]
            names = dict.fromkeys([*self._recipes.columns, *ids, *self._copied])
            for batch in iter_file_columns(file, [*names]):
                yield from self._make_batches(self._read_rows(file, batch), batch)

    def _read_rows(self, file: InputFile, batch: pa.RecordBatch) -> list[_TableRow]:
        def read(name: str) -> list[Any]:
            where = f"{file.source.uri}: column {name!r}"
            cells = read_texts(batch.column(name), where)
            if name == self._id and cells.faults is not None:
                raise BadInput(f"{where} has ids that are not valid UTF-8. Save it as UTF-8.")
            return list(cells.values.to_pylist())

        ids = [None] * batch.num_rows if self._id is None else read(self._id)
        names = self._recipes.columns
        columns = [read(name) for name in names]
        rows = []
        for index, row_id in enumerate(ids):
            texts = [column[index] for column in columns]
            content = ["texts", *texts] if row_id is None else ["id", row_id]
            whole = None if None in texts else dict(zip(names, texts, strict=True))
            rows.append(_TableRow(_hash_content(*content), row_id, whole))
        return rows

    def _make_batches(
        self, rows: list[_TableRow], batch: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        prompts = (
            (index, values) for index, row in enumerate(rows) for values in self._iter_values(row)
        )
        while made := [*islice(prompts, BATCH_ROWS)]:
            yield self._assemble(made, batch)

    def _assemble(self, made: list[tuple[int, _Values]], batch: pa.RecordBatch) -> pa.RecordBatch:
        indices = pa.array([index for index, _ in made])
        types = {theirs: TYPES[ours] for ours, theirs in self.written.items()}
        types |= dict.fromkeys(RECIPE_COLUMNS, pa.string())
        columns = {
            name: pa.array([values.get(name) for _, values in made], kind)
            for name, kind in types.items()
        }
        for name in self._copied:
            copied = plain_array(batch.column(name)).take(indices)
            columns[name] = _fill_seeds(copied, columns[name]) if name in columns else copied
        return pa.RecordBatch.from_pydict(columns)

    def _iter_values(self, row: _TableRow) -> Iterator[_Values]:
        for recipe in self._recipes.prompts:
            count = recipe.count * self._recipes.negative.count
            for draw in range(self._recipes.draws):
                for number in range(count):
                    texts = self._render_prompts(
                        row,
                        recipe,
                        draw,
                        number,
                    )
                    yield from self._sweep(row, draw, texts)

    def _render_prompts(self, row: _TableRow, recipe: Recipe, draw: int, number: int) -> _Values:
        """Render a prompt and its negative prompt, with the choices made in them."""
        texts: _Values = {TEMPLATE_COLUMN: recipe.source}
        if row.texts is None:
            return texts
        key = bytes.fromhex(_hash_content(self._seed, row.key, draw))
        number, negative_number = divmod(number, self._recipes.negative.count)
        limit = MAX_PROMPT_CHARS + 1  # a prompt of this length is too long, and is rejected
        drawing = Drawing(key, row.texts, limit)
        negative = Drawing(key, row.texts, limit)
        prompt = render(recipe.template, drawing, number)
        template = self._recipes.negative.template
        negative_prompt = render(template, negative, negative_number, NEGATIVE)
        texts["prompt"] = prompt.strip()
        texts[NEGATIVE] = negative_prompt.strip()
        choices = drawing.chosen
        choices |= {f"{NEGATIVE}.{name}": choice for name, choice in negative.chosen.items()}
        if max(len(prompt), len(negative_prompt)) < limit:  # a longer text is rejected
            texts[CHOICES_COLUMN] = json.dumps(choices, ensure_ascii=False)
        return texts

    def _sweep(self, row: _TableRow, draw: int, texts: _Values) -> Iterator[_Values]:
        """Yield the prompt with each combination of swept settings, all with one seed."""
        content = (row.key, draw, texts.get("prompt"), texts.get(NEGATIVE))
        seed = int(_hash_content(self._seed, *content)[:SEED_DIGITS], 16)
        for cell in self._cells:
            row_id = row.id
            if row_id is not None and not self._is_alone:
                digits = _hash_content(*content, texts[TEMPLATE_COLUMN], *cell)
                row_id = f"{row_id}-{digits[:ID_DIGITS]}"
            swept = dict(zip(self._swept, cell, strict=True))
            values = {**texts, "id": row_id, "seed": seed, **swept}
            yield {self.written.get(name, name): value for name, value in values.items()}


def _fill_seeds(cells: pa.Array, own: pa.Array) -> pa.Array:
    """Fill empty cells of the table's seed column with the seeds in `own`."""
    cells = cells.cast(pa.float64() if pa.types.is_floating(cells.type) else pa.string())
    is_empty = pc.match_substring_regex(cells.cast(pa.string()), NO_SEED_PATTERN)
    return pc.if_else(pc.fill_null(is_empty, True), own.cast(cells.type), cells)


def _hash_content(*content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
