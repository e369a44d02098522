"""A job's templates, the number of prompts that they make, and their table."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import INPUT_IMAGE_COLUMNS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import RECIPE_COLUMNS, PromptTemplate
from imagekiln.steps.plan.columns import (
    OUR_NAMES,
    describe_absence,
    describe_unread,
    match_names,
    passthrough_schema,
)
from imagekiln.steps.plan.input_files import (
    InputFile,
    choose_columns,
    no_rows_error,
    read_source,
    require_type,
)
from imagekiln.steps.plan.input_formats import convert_sources
from imagekiln.steps.plan.source_files import SourceFile, gather_sources
from imagekiln.steps.plan.text_formats import refuse_nested
from imagekiln.steps.prompts.parser import Mode, parse_template
from imagekiln.steps.prompts.template import MAX_COUNT, Template, TemplateMistake, count_texts
from imagekiln.steps.prompts.wildcards import WildcardFiles
from imagekiln.steps.runtime.figures import pluralize

TEMPLATE_SETTING = "prompts.template"
NEGATIVE_SETTING = "prompts.negative_template"
UNREAD_PREFIX = "imagekiln:"  # of what is written under no name of the table's


@dataclass(frozen=True, slots=True)
class Recipe:
    """A template as it was written and as it was read, with how many prompts it makes."""

    source: str
    template: Template
    count: int


@dataclass(frozen=True, slots=True)
class PromptRecipes:
    """The templates of a job and the table's columns that they name.

    Each template is rendered `draws` times for a row. `digest` is a hash of the wildcard files.
    """

    prompts: tuple[Recipe, ...]
    negative: Recipe
    columns: frozenset[str]
    draws: int
    digest: str

    @property
    def combinations(self) -> int:
        """The prompts of one row of the table, before any sweep."""
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

    prompts = []
    for index, source in enumerate(settings.templates):
        setting = TEMPLATE_SETTING
        if len(settings.templates) > 1:
            setting += f"[{index}]"
        prompts.append(load(source, setting))
    return PromptRecipes(
        prompts=tuple(prompts),
        negative=load(settings.negative_template or "", NEGATIVE_SETTING),
        columns=frozenset(wildcards.columns),
        draws=1 if settings.combinations == "all" else settings.combinations,
        digest=wildcards.digest,
    )


def count_prompts(settings: PromptTemplate, recipes: PromptRecipes, rows: int) -> str:
    """Count the prompts of a table with so many rows, as `6 prompts (3 combinations x 2 rows)`.

    Raises BadInput if the job allows fewer.
    """
    combinations = recipes.combinations
    swept = prod(map(len, settings.sweep.values.values()))
    factors = [pluralize(combinations, "combination")]
    if rows != 1:
        factors.append(f"{rows:,} rows")
    if swept != 1:
        factors.append(f"{swept:,} settings of the sweep")
    product = " x ".join(factors)
    prompts = combinations * rows * swept
    least = "at least " if combinations >= MAX_COUNT else ""
    count = f"{least}{pluralize(prompts, 'prompt')} ({product})"
    if prompts > settings.most_prompts:
        raise BadInput(
            f"{TEMPLATE_SETTING}: makes {count}, and at most "
            f"{settings.most_prompts:,} are allowed. Set prompts.combinations to how many are "
            "drawn for each row."
        )
    return count


def read_template_table(
    job: Job, settings: PromptTemplate, recipes: PromptRecipes, folder: Path
) -> tuple[InputFile, ...]:
    """Read the footers of the table's files, if any.

    `passthrough` are the columns that are copied from the row. Raises BadInput, Missing, TryAgain.
    """
    if settings.table is None:
        if recipes.columns:
            raise BadInput(
                f"{TEMPLATE_SETTING}: names column {min(recipes.columns)!r}, and there is no "
                "table. Set prompts.table."
            )
        return ()
    sources = convert_sources(gather_sources(settings.table_patterns, folder), folder)
    files = tuple(_read_file(job, settings, recipes, source) for source in sources)
    if not any(file.rows for file in files):
        raise no_rows_error(sources[0])
    first = files[0]
    for file in files:
        if (file.passthrough, file.column_names) != (first.passthrough, first.column_names):
            raise BadInput(
                f"{file.source.uri}: the columns that are read are not those of "
                f"{first.source.uri}, or of other types. Give all files the same."
            )
    return files


def _read_file(
    job: Job, settings: PromptTemplate, recipes: PromptRecipes, source: SourceFile
) -> InputFile:
    file, schema = read_source(source)
    matched = _match_names(job, settings, schema.names, source.uri)
    named = sorted(recipes.columns)
    read_names = [*named, *job.carry, *matched.values()]
    _require_columns(recipes, read_names, source, schema)
    names = dict(zip(named, named, strict=True))
    if "id" in matched:
        row_id = matched["id"]
        names[row_id] = row_id
    copied = _copied_columns(job, settings, source, schema, matched)
    return choose_columns(file, schema, names, copied)


def _match_names(
    job: Job, settings: PromptTemplate, names: Sequence[str], where: str
) -> dict[str, str]:
    """The table's names of columns that neither template nor sweep writes, and of the id."""
    written = {*written_columns(settings)} - {"id"}
    wanted = [name for name in OUR_NAMES if name not in written]
    return match_names(names, job.columns, where, wanted)


def name_written_columns(
    job: Job, settings: PromptTemplate, table: Sequence[InputFile]
) -> dict[str, str]:
    """Names for our columns that differ from those read from the table."""
    names = {name for file in table for name in (*file.column_names, *file.passthrough.names)}
    matched = _match_names(job, settings, sorted(names), TEMPLATE_SETTING)
    return {
        ours: matched.get(ours) or theirs or f"{UNREAD_PREFIX}{ours}"
        for ours, theirs in job.columns
    }


def written_columns(settings: PromptTemplate) -> list[str]:
    """Our names of the columns that are written for each prompt."""
    names = ["prompt", "id", *settings.sweep.values]
    if settings.negative_template is not None:
        names.append("negative_prompt")
    return names


def _require_columns(
    recipes: PromptRecipes, names: Sequence[str], source: SourceFile, schema: pa.Schema
) -> None:
    for name in sorted(recipes.columns):
        if name not in schema.names:
            absence = describe_absence(schema, name)
            raise BadInput(f"{source.uri}: {absence}. Correct {TEMPLATE_SETTING}.")
    for name in names:
        if schema.names.count(name) > 1:
            raise BadInput(f"{source.uri}: has more than one column {name!r}. Rename one.")
    for name in recipes.columns:
        refuse_nested(schema.field(name))


def _copied_columns(
    job: Job,
    settings: PromptTemplate,
    source: SourceFile,
    schema: pa.Schema,
    matched: dict[str, str],
) -> pa.Schema:
    written = [getattr(job.columns, ours) for ours in written_columns(settings)]
    for name in job.carry:
        if name in written:
            raise BadInput(
                f"carry: {name!r} is a column that templates write. Rename it in the table."
            )
    carry = tuple(name for name in job.carry if name not in RECIPE_COLUMNS)
    copied = {field.name: field for field in passthrough_schema(schema, carry, source.uri)}
    for ours, theirs in matched.items():
        if ours == "id":
            continue
        if ours in INPUT_IMAGE_COLUMNS:
            # The paths that a cell may name depend on the place of its table.
            raise BadInput(
                f"{source.uri}: column {theirs!r} has input images, which templates do not take. "
                f"Write the prompts into a table.{describe_unread(ours)}"
            )
        field = schema.field(theirs)
        require_type(ours, field, source)
        copied.setdefault(theirs, field)
    return pa.schema([*copied.values()])
