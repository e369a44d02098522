"""Input files: match their columns, and read their rows in batches."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.columns import MAX_PROMPT_CHARS, PROMPT_COLUMNS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import REWRITE_COLUMNS
from imagekiln.steps.job.rows import ColumnNames
from imagekiln.steps.plan.columns import (
    COLUMN_READERS,
    OUR_NAMES,
    describe_absence,
    describe_unread,
    is_set,
    match_names,
    passthrough_schema,
)
from imagekiln.steps.plan.input_images import require_image_type
from imagekiln.steps.plan.source_files import (
    UNREADABLE_ERRORS,
    SourceFile,
    convert_sources,
    gather_sources,
)
from imagekiln.steps.plan.text_formats import BATCH_ROWS, LINE_FIELD, refuse_nested, text_array
from imagekiln.steps.storage.failures import error_reason, explain_storage_error, is_storage_error

COLUMN_KINDS = {column.name: column.kind for column in PROMPT_COLUMNS}
# Read pages on demand. By default, pyarrow buffers whole column chunks.
PARQUET_OPTIONS = {
    "page_checksum_verification": True,
    "pre_buffer": False,
    "buffer_size": 2**20,
}
BATCH_BYTES = 16 * 2**20
# A file stores a repeated image once (dictionary encoding), but a batch repeats it in each row.
IMAGE_BATCH_ROWS = 256

# whole: the model ended the prompt. cut: it reached the token limit. unread: the original prompt is
# too long for the model.
Ending = Literal["whole", "cut", "unread"]


@dataclass(frozen=True, slots=True)
class RewrittenText:
    """A rewritten prompt, and the reason that the model stopped."""

    text: str
    end: Ending


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """Rewritten prompts by original prompt, and their hash. If `appends`, they extend it."""

    texts: Mapping[str, RewrittenText]
    sha256: str
    appends: bool

    def choose(self, prompt: str | None) -> tuple[str | None, str | None]:
        """Return the final prompt and the outcome of rewriting, or the prompt itself and None."""
        rewritten = None if prompt is None else self.texts.get(prompt)
        if prompt is None or rewritten is None:
            return prompt, None
        if rewritten.end == "unread":
            return prompt, "unread"
        if not rewritten.text.strip():
            return prompt, "empty"
        text = prompt + rewritten.text if self.appends else rewritten.text
        text = text.strip()
        if len(text) > MAX_PROMPT_CHARS:
            return prompt, "too_long"
        return text, "cut" if rewritten.end == "cut" else "rewritten"


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file with the columns that its footer lists.

    `column_names` maps prompt columns to the file's names for them. `passthrough` is the schema of
    the carried columns, and `partitions` are columns encoded in the file's path. `made_prompts`
    describes the number of prompts made from a template. With `prompt_texts`, prompts were
    rewritten, and `passthrough` ends with REWRITE_COLUMNS.
    """

    source: SourceFile
    rows: int
    column_names: dict[str, str]
    passthrough: pa.Schema
    partitions: dict[str, str | None]
    unused_columns: tuple[str, ...] = ()
    made_prompts: str | None = None
    prompt_texts: PromptTexts | None = None

    @property
    def carried(self) -> list[str]:
        """Carried columns that the file itself has."""
        names: list[str] = self.passthrough.names
        return names if self.prompt_texts is None else names[: -len(REWRITE_COLUMNS)]


def read_input_files(job: Job, folder: Path) -> tuple[InputFile, ...]:
    """Find the job's prompt files, hash them and read their footers.

    Remote files are downloaded to `folder`. Raises BadInput, Missing, TryAgain.
    """
    sources = convert_sources(gather_sources(job.prompt_patterns, folder), folder)
    return read_footers(sources, job.columns, job.read_columns)


def input_fingerprint(files: Iterable[InputFile]) -> str:
    """Hash the contents of the files in order, with the columns encoded in their paths."""
    digests = ""
    for file in files:
        values = json.dumps(sorted(file.partitions.items())) if file.partitions else ""
        digests += file.source.sha256 + values
    return hashlib.sha256(digests.encode()).hexdigest()


def guessed_columns(job: Job, files: Iterable[InputFile]) -> dict[str, str]:
    """Map columns with other spellings in the files to the prompt columns they stand for.

    The columns of a run's images are named here, not by a user.
    """
    return {
        theirs: ours
        for file in files
        if not file.source.runs
        for ours, theirs in file.column_names.items()
        if theirs != getattr(job.columns, ours) is not None
    }


def find_unused_columns(files: Iterable[InputFile]) -> tuple[str, ...]:
    """Return columns in any of the user's files that are neither read nor carried."""
    own = (file for file in files if not file.source.runs)
    return tuple(dict.fromkeys(name for file in own for name in file.unused_columns))


def read_footers(
    sources: tuple[SourceFile, ...],
    columns: ColumnNames,
    carry: tuple[str, ...],
    wanted: Sequence[str] = OUR_NAMES,
) -> tuple[InputFile, ...]:
    """Read every footer, so that a bad file fails before any row is read.

    `wanted` are the prompt columns to match. Raises BadInput, TryAgain.
    """
    files = tuple(read_footer(source, columns, carry, wanted)[0] for source in sources)
    require_rows(files)
    for file in files:
        if file.passthrough != files[0].passthrough:
            raise BadInput(
                f"{file.source.uri}: the columns to carry have other types than in "
                f"{files[0].source.uri}. Give them one type in all files."
            )
    return files


def require_rows(files: tuple[InputFile, ...]) -> None:
    """Raise BadInput if no file has rows."""
    if not any(file.rows for file in files):
        raise BadInput(f"{files[0].source.uri}: has no rows. Check `prompts`.")


def read_footer(
    source: SourceFile,
    columns: ColumnNames,
    carry: tuple[str, ...],
    wanted: Sequence[str] = OUR_NAMES,
    named: tuple[str, ...] = (),
) -> tuple[InputFile, pa.Schema]:
    """Read the footer of a file. Returns the file and its schema.

    `wanted` are the prompt columns to match, `carry` the columns to carry, and `named` the columns
    that templates name. Raises BadInput, TryAgain.
    """
    file, schema = read_source(source)
    names = _match_columns(
        source,
        schema,
        columns,
        wanted,
    )
    for name in named:
        if name not in schema.names:
            absence = describe_absence(schema, name)
            raise BadInput(f"{source.uri}: {absence}. Correct prompts.template.")
    read_names = [*names.values(), *carry, *named]
    for name in read_names:
        if schema.names.count(name) > 1:
            raise BadInput(f"{source.uri}: has more than one column {name!r}. Rename one.")
    for ours, theirs in names.items():
        _require_type(ours, schema.field(theirs), source)
    for name in named:
        refuse_nested(schema.field(name))
    file = replace(
        file,
        column_names=names,
        passthrough=passthrough_schema(schema, carry, source.uri),
        partitions={name: file.partitions[name] for name in file.partitions if name in read_names},
        unused_columns=tuple(name for name in schema.names if name not in read_names),
    )
    return file, schema


def read_source(source: SourceFile) -> tuple[InputFile, pa.Schema]:
    """Read the footer of a file, without choosing columns. Raises BadInput, TryAgain."""
    try:
        with pq.ParquetFile(source.path) as parquet:
            rows = parquet.metadata.num_rows
            schema = parquet.schema_arrow
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(source, error) from error
    if LINE_FIELD.name in schema.names:
        schema = schema.remove(schema.get_field_index(LINE_FIELD.name))
    partitions = {
        name: value for name, value in source.partitions.items() if name not in schema.names
    }
    for name in partitions:
        schema = schema.append(pa.field(name, pa.string()))
    return InputFile(
        source,
        rows,
        {},
        pa.schema([]),
        partitions,
    ), schema


def _match_columns(
    source: SourceFile, schema: pa.Schema, columns: ColumnNames, wanted: Sequence[str]
) -> dict[str, str]:
    """Map the `wanted` prompt columns to the file's names for them. Raises BadInput."""
    for ours in wanted:
        named = getattr(columns, ours)
        if named is not None and is_set(ours, named) and named not in schema.names:
            absence = describe_absence(schema, named)
            raise BadInput(f"{source.uri}: {absence}. Correct columns.{ours}.")
    names = match_names(
        schema.names,
        columns,
        source.uri,
        wanted,
    )
    if "prompt" in wanted and "prompt" not in names:
        absence = describe_absence(schema, columns.prompt)
        raise BadInput(f"{source.uri}: {absence}. Set columns.prompt.")
    return names


def _require_type(ours: str, field: pa.Field, source: SourceFile) -> None:
    """Raise BadInput if the type of a prompt column cannot be read."""
    where = f"{source.uri}: column {field.name!r}"
    kind = COLUMN_KINDS[ours]
    if kind != "images":
        refuse_nested(field, ours)
    is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    if ours == "prompt" and is_number:
        raise BadInput(
            f"{where} is {field.type}, not text. "
            "Set columns.prompt to the column that holds the prompts."
        )
    try:
        if kind in ("image", "images"):
            require_image_type(field.type, where, lists=kind == "images")
        else:
            nothing = pa.array([], field.type)
            COLUMN_READERS[kind](nothing, where)
    except BadInput as error:
        raise BadInput(f"{error}{describe_unread(ours)}") from error


def unreadable_error(source: SourceFile, error: Exception) -> KilnError:
    """Return the error for an unreadable input file: storage failed, or the file is damaged."""
    uri = source.uri
    if is_storage_error(error) and (failure := explain_storage_error(uri, error)):
        return failure
    return BadInput(
        f"{uri}: is no whole Parquet file ({error_reason(error)}). Write it again, or end its name "
        "in .csv, .tsv, .jsonl or .txt if it is one of these."
    )


def iter_file_columns(file: InputFile, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a file unchanged, in batches of bounded size.

    Raises BadInput if the file is damaged, TryAgain.
    """
    columns = [name for name in names if name not in file.partitions]
    try:
        with pq.ParquetFile(file.source.path, **PARQUET_OPTIONS) as parquet:
            rows = _batch_rows(parquet, columns)
            for batch in parquet.iter_batches(rows, columns=columns):
                yield _add_partitions(file, batch, names)
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(file.source, error) from error


def _batch_rows(parquet: pq.ParquetFile, columns: Sequence[str]) -> int:
    """Choose a batch size that fits in memory, from the row group with the largest rows."""
    metadata = parquet.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    limit = BATCH_ROWS
    for name in columns:
        kind = parquet.schema_arrow.field(name).type
        kind = getattr(kind, "value_type", kind)  # of a list
        if pa.types.is_struct(kind) or pa.types.is_binary(kind):
            limit = IMAGE_BATCH_ROWS
    for group in groups:
        rows = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
        limit = max(1, min(limit, rows))
    return limit


def _add_partitions(file: InputFile, batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Append the columns in `names` that are encoded in the file's path."""
    for name in names:
        if name in file.partitions:
            (value,) = text_array([file.partitions[name]])
            values = pa.repeat(value, batch.num_rows)
            batch = batch.append_column(name, values)
    return batch
