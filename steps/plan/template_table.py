"""The table of a job's templates: which of its columns they name, and which stay as they are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import INPUT_IMAGE_COLUMNS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import RECIPE_COLUMNS, PromptTemplate
from imagekiln.steps.plan.column_readers import describe_absence
from imagekiln.steps.plan.input_files import (
    UNREADABLE_ERRORS,
    InputFile,
    find_partitions,
    no_rows_error,
    read_table_schema,
    unreadable_error,
)
from imagekiln.steps.plan.input_formats import convert_sources
from imagekiln.steps.plan.source_files import SourceFile, gather_sources
from imagekiln.steps.plan.template_count import TEMPLATE_SETTING, PromptRecipes

NO_COLUMNS = pa.schema([])


@dataclass(frozen=True, slots=True)
class TemplateTable:
    """The files of a table. `named` are the columns that templates name, as texts.

    `copied` are the columns that each prompt has as its row has them: settings, and those to carry.
    `id` is the column of ids, if there is one.
    """

    files: tuple[InputFile, ...] = ()
    named: tuple[str, ...] = ()
    copied: pa.Schema = NO_COLUMNS
    id: str | None = None
    unused_columns: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Its rows; without a table, prompts are made as for one row without columns."""
        if not self.files:
            return 1
        return sum(file.rows for file in self.files)

    @property
    def read_columns(self) -> list[str]:
        """All columns that are read, each once."""
        names = [*self.named, *self.copied.names]
        if self.id is not None:
            names.append(self.id)
        return [*dict.fromkeys(names)]


def read_template_table(
    job: Job, settings: PromptTemplate, recipes: PromptRecipes, folder: Path
) -> TemplateTable:
    """Read the footers of the table's files; there may be none.

    Raises BadInput, Missing, TryAgain.
    """
    if settings.table is None:
        if recipes.columns:
            raise BadInput(
                f"{TEMPLATE_SETTING}: names column {min(recipes.columns)!r}, and there is no "
                "table. Set prompts.table."
            )
        return TemplateTable()
    ours = [name for _, name in job.columns]
    texts = frozenset([*recipes.columns, *ours])
    gathered = gather_sources(settings.table_patterns, folder)
    sources = convert_sources(gathered, texts, folder)
    tables = [_read_file(job, settings, recipes, source) for source in sources]
    files = tuple(table.files[0] for table in tables)
    if not any(file.rows for file in files):
        raise no_rows_error(sources[0])
    first = tables[0]
    for table, source in zip(tables, sources, strict=True):
        has_same_columns = table.copied == first.copied and table.id == first.id
        if not has_same_columns:
            raise BadInput(
                f"{source.uri}: the columns that are read are not those of {sources[0].uri}, or of "
                "other types. Give all files the same."
            )
    unused = dict.fromkeys(name for table in tables for name in table.unused_columns)
    return replace(first, files=files, unused_columns=tuple(unused))


def _read_file(
    job: Job, settings: PromptTemplate, recipes: PromptRecipes, source: SourceFile
) -> TemplateTable:
    """One file, as if it were the whole table."""
    try:
        metadata = pq.read_metadata(source.path)
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(source, error) from error
    schema = read_table_schema(source, metadata)
    named = tuple(sorted(recipes.columns))
    _require_columns(source, schema, named, TEMPLATE_SETTING)
    _refuse_written_columns(job, settings, source, schema)
    copied = [schema.field(name) for name in _copied_names(job, settings, source, schema)]
    ids = job.columns.id if job.columns.id in schema.names else None
    table = TemplateTable(named=named, copied=pa.schema(copied), id=ids)
    read = table.read_columns
    file = InputFile(
        source=source,
        rows=metadata.num_rows,
        column_names={},
        passthrough=NO_COLUMNS,
        partitions=find_partitions(source, metadata, {*read}),
    )
    unused = tuple(name for name in schema.names if name not in read)
    return replace(table, files=(file,), unused_columns=unused)


def written_columns(job: Job, settings: PromptTemplate) -> dict[str, str]:
    """The columns that are written for each prompt by our names, each with that of the input."""
    names = ["prompt", *settings.sweep.values]
    if settings.negative_template is not None:
        names.append("negative_prompt")
    return {name: getattr(job.columns, name) for name in names}


def _copied_names(
    job: Job, settings: PromptTemplate, source: SourceFile, schema: pa.Schema
) -> list[str]:
    written = {"id", *written_columns(job, settings)}
    names = [theirs for ours, theirs in job.columns if ours not in written]
    carried = [name for name in job.carry if name not in RECIPE_COLUMNS]
    _require_columns(source, schema, carried, "`carry`")
    unique = dict.fromkeys([*names, *carried])
    present = [name for name in unique if name in schema.names]
    for ours in INPUT_IMAGE_COLUMNS:
        # Which paths a cell may name depends on where its table is, which no made row says.
        if getattr(job.columns, ours) in present:
            raise BadInput(
                f"{source.uri}: has input images in column {getattr(job.columns, ours)!r}, which "
                "templates do not take. Rename it, or write the prompts into a table."
            )
    return present


def _require_columns(
    source: SourceFile, schema: pa.Schema, names: Sequence[str], setting: str
) -> None:
    for name in names:
        count = schema.names.count(name)
        if count == 1:
            continue
        problem = f"has more than one column {name!r}" if count else describe_absence(schema, name)
        raise BadInput(f"{source.uri}: {problem}. Correct {setting}.")


def _refuse_written_columns(
    job: Job, settings: PromptTemplate, source: SourceFile, schema: pa.Schema
) -> None:
    """Raise BadInput where a column of the table would be mixed up with one that is written."""
    for name in RECIPE_COLUMNS:
        if name in schema.names:
            raise BadInput(
                f"{source.uri}: has a column {name!r}, which templates write. Rename it."
            )
    for name in written_columns(job, settings).values():
        if name in job.carry:
            raise BadInput(
                f"carry: {name!r} is a column that templates write. Rename it in the table."
            )
