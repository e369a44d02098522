"""The input files: which columns they have, and how these are read as they are."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, KilnError, cut_name
from imagekiln.steps.job.columns import MAX_PROMPT_CHARS, PROMPT_COLUMNS
from imagekiln.steps.job.job import ColumnNames, Job
from imagekiln.steps.plan.column_names import describe_unread, is_set, match_names
from imagekiln.steps.plan.column_readers import (
    COLUMN_READERS,
    NUMBER_PATTERN,
    describe_absence,
    passthrough_schema,
    read_texts,
)
from imagekiln.steps.plan.input_formats import (
    DELIMITERS,
    UNREADABLE_ERRORS,
    convert_sources,
    describe_text,
)
from imagekiln.steps.plan.input_images import require_image_type
from imagekiln.steps.plan.json_formats import refuse_nested
from imagekiln.steps.plan.rewriting import RewrittenText
from imagekiln.steps.plan.source_files import SourceFile, gather_sources
from imagekiln.steps.plan.text_formats import BATCH_ROWS, LINE_FIELD, text_array
from imagekiln.steps.storage.failures import (
    error_reason,
    explain_storage_error,
    is_storage_error,
)

COLUMN_KINDS = {column.name: column.kind for column in PROMPT_COLUMNS}
# Pages are read as they are needed: by default, pyarrow keeps every column chunk that it has read.
PARQUET_OPTIONS = {
    "page_checksum_verification": True,
    "pre_buffer": False,
    "buffer_size": 2**20,
}
BATCH_BYTES = 16 * 2**20
# A file has an image that repeats once, and a batch as often as rows have it.
IMAGE_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The texts of a job's prompts, and a hash of them."""

    texts: Mapping[str, RewrittenText]
    sha256: str
    appends: bool

    def choose(self, prompt: str | None) -> tuple[str | None, str | None]:
        """The text that is drawn for a prompt, and what became of the prompt.

        A prompt without a text stays, such as that of a row that is rejected.
        """
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
    """A source whose footer was read.

    `column_names` are the file's names of our columns, `passthrough` the columns that are carried,
    `partitions` those of both that stand in the file's name, with their value, and
    `unused_columns` the rest. `made_prompts` says how many prompts were made of a template, if any.
    With `prompt_texts`, they were rewritten, and the last columns of `passthrough` say of what.
    """

    source: SourceFile
    rows: int
    column_names: dict[str, str]
    passthrough: pa.Schema
    partitions: dict[str, str | None]
    unused_columns: tuple[str, ...] = ()
    made_prompts: str | None = None
    prompt_texts: PromptTexts | None = None


def read_input_files(job: Job, folder: Path) -> tuple[InputFile, ...]:
    """Find the job's prompt files, hash them and read their footers, once for a command.

    Remote files are downloaded to `folder`. Raises BadInput, Missing, TryAgain.
    """
    sources = convert_sources(gather_sources(job.prompt_patterns, folder), folder)
    return read_footers(sources, job.columns, job.read_columns)


def input_fingerprint(files: Iterable[InputFile]) -> str:
    """One hash for the whole input: its files' contents in order, whatever the files are called."""
    digests = "".join(map(_file_digest, files))
    return hashlib.sha256(digests.encode()).hexdigest()


def guessed_columns(job: Job, files: Iterable[InputFile]) -> dict[str, str]:
    """Our names of the files' columns that are read although the job calls them otherwise."""
    return {
        theirs: ours
        for file in files
        for ours, theirs in file.column_names.items()
        if theirs != getattr(job.columns, ours) is not None
    }


def find_unused_columns(files: Iterable[InputFile]) -> tuple[str, ...]:
    """The columns that are neither read nor carried, of any of the files."""
    return tuple(dict.fromkeys(name for file in files for name in file.unused_columns))


def _file_digest(file: InputFile) -> str:
    """What a file adds to the fingerprint: its content, and what of its name is read as columns."""
    values = json.dumps(sorted(file.partitions.items())) if file.partitions else ""
    return file.source.sha256 + values


def read_footers(
    sources: tuple[SourceFile, ...], columns: ColumnNames, carry: tuple[str, ...]
) -> tuple[InputFile, ...]:
    """Read every footer, so that a bad file fails before any row is read.

    Raises BadInput, TryAgain.
    """
    files = tuple(_read_footer(source, columns, carry) for source in sources)
    if not any(file.rows for file in files):
        raise no_rows_error(sources[0])
    for file in files:
        if file.passthrough != files[0].passthrough:
            raise BadInput(
                f"{file.source.uri}: the columns to carry have other types than in "
                f"{files[0].source.uri}. Give them one type in all files."
            )
    return files


def _read_footer(source: SourceFile, columns: ColumnNames, carry: tuple[str, ...]) -> InputFile:
    file, schema = read_source(source)
    names = _match_columns(source, schema, columns, carry)
    passthrough = passthrough_schema(schema, carry, source.uri)
    file = choose_columns(file, schema, names, passthrough)
    if source.kind in DELIMITERS:
        _refuse_number_cells(file)
    return file


def read_source(source: SourceFile) -> tuple[InputFile, pa.Schema]:
    """A file of which no column is chosen yet, and the columns of it and of its name.

    Raises BadInput, also where reading it is not safe, TryAgain.
    """
    try:
        metadata = pq.read_metadata(source.path)
        schema = footer_schema(metadata)
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(source, error) from error
    if LINE_FIELD.name in schema.names:
        schema = schema.remove(schema.get_field_index(LINE_FIELD.name))
    partitions = {
        name: value for name, value in source.partitions.items() if name not in schema.names
    }
    for name in partitions:
        field = pa.field(name, pa.string())
        schema = schema.append(field)
    return InputFile(source, metadata.num_rows, {}, pa.schema([]), partitions), schema


def choose_columns(
    file: InputFile, schema: pa.Schema, names: dict[str, str], passthrough: pa.Schema
) -> InputFile:
    """The file, of which these columns are read and carried."""
    read_names = {*names.values(), *passthrough.names}
    return replace(
        file,
        column_names=names,
        passthrough=passthrough,
        partitions={name: file.partitions[name] for name in file.partitions if name in read_names},
        unused_columns=tuple(name for name in schema.names if name not in read_names),
    )


def no_rows_error(source: SourceFile) -> BadInput:
    """The error of an input whose first file is this, and none of whose files has rows."""
    return BadInput(f"{source.uri}: has no rows. Check `prompts`.")


def footer_schema(metadata: pq.FileMetaData) -> pa.Schema:
    """The schema of a footer, with the type of UUIDs, which its conversion to Arrow loses."""
    schema = metadata.schema.to_arrow_schema()
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        position = schema.get_field_index(column.path)
        if column.logical_type.type == "UUID" and position >= 0:
            field = pa.field(column.path, pa.uuid())
            schema = schema.set(position, field)
    return schema


def _refuse_number_cells(file: InputFile) -> None:
    """Raise BadInput if the first prompts of a file whose cells are all text are all numbers."""
    name = file.column_names["prompt"]
    if name in file.partitions:
        return
    first = next(iter_file_columns(file, [name]), None)
    if first is not None:
        texts = read_texts(first.column(name), name).values
        are_numbers = pc.match_substring_regex(texts, NUMBER_PATTERN)
        if pc.all(are_numbers).as_py():
            raise _number_prompts_error(file.source, name, "numbers")


def _number_prompts_error(source: SourceFile, name: str, kind: str) -> BadInput:
    return BadInput(
        f"{source.uri}: column {name!r} is {kind}, not text. "
        "Set columns.prompt to the column that holds the prompts."
    )


def _match_columns(
    source: SourceFile, schema: pa.Schema, columns: ColumnNames, carry: tuple[str, ...]
) -> dict[str, str]:
    """The file's names of our columns. Raises BadInput where one has a type that we do not take."""
    _require_named_columns(source, schema, columns)
    names = match_names(schema.names, columns, source.uri)
    if "prompt" not in names:
        absence = describe_absence(schema, columns.prompt)
        raise BadInput(f"{source.uri}: {absence}. Set columns.prompt.")
    ours_by_name = dict.fromkeys(carry, "")
    ours_by_name |= {name: ours for ours, name in names.items()}
    for name, ours in ours_by_name.items():
        if schema.names.count(name) > 1:
            problem = f"{source.uri}: has more than one column {name!r}. Rename one."
            raise BadInput(f"{problem}{describe_unread(ours)}")
    for ours, theirs in names.items():
        require_type(ours, schema.field(theirs), source)
    return names


def require_type(ours: str, field: pa.Field, source: SourceFile) -> None:
    """Raise BadInput where a column has a type that is not taken for one of ours."""
    refuse_nested(field, ours)
    where = f"{source.uri}: column {field.name!r}"
    kind = COLUMN_KINDS[ours]
    if ours == "prompt" and _is_number(field.type):
        numbers = cut_name(str(field.type))
        raise _number_prompts_error(source, field.name, numbers)
    try:
        if kind == "image":
            require_image_type(field.type, where)
        else:
            nothing = pa.array([], field.type)
            COLUMN_READERS[kind](nothing, where)
    except BadInput as error:
        raise BadInput(f"{error}{describe_unread(ours)}") from error


def _require_named_columns(source: SourceFile, schema: pa.Schema, columns: ColumnNames) -> None:
    """Raise BadInput where the job names a column that the file lacks; defaults may be absent."""
    for ours, theirs in columns:
        if theirs is not None and is_set(ours, theirs) and theirs not in schema.names:
            absence = describe_absence(schema, theirs)
            raise BadInput(f"{source.uri}: {absence}. Correct columns.{ours}.")


def _is_number(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def unreadable_error(source: SourceFile, error: Exception) -> KilnError:
    """Explain an input file that cannot be read: storage failed, or the file is damaged."""
    uri = source.uri
    if is_storage_error(error) and (failure := explain_storage_error(uri, error)):
        return failure
    if problem := describe_text(source):
        return BadInput(f"{uri}: {problem}")
    return BadInput(f"{uri}: is no whole Parquet file ({error_reason(error)}). Write it again.")


def iter_file_columns(file: InputFile, names: list[str]) -> Iterator[pa.RecordBatch]:
    """These columns of every row of a file as they are, in batches of bounded size.

    Raises BadInput where the file is damaged, TryAgain where storage fails.
    """
    columns = [name for name in names if name not in file.partitions]
    try:
        with pq.ParquetFile(file.source.path, **PARQUET_OPTIONS) as parquet:
            for batch in _iter_batches(parquet, columns):
                yield _add_partitions(file, batch, names)
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(file.source, error) from error


def _iter_batches(parquet: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Every row of these columns. Raises what reading a damaged file raises."""
    most = BATCH_ROWS
    schema = parquet.schema_arrow
    types = [schema.field(name).type for name in columns]
    if any(map(_may_be_image, types)):
        most = IMAGE_BATCH_ROWS
    metadata = parquet.metadata
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    rows = [
        BATCH_BYTES * int(group.num_rows) // max(1, int(group.total_byte_size)) for group in groups
    ]
    size = max(1, min([most, *rows]))
    yield from parquet.iter_batches(size, columns=[*columns])


def _may_be_image(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_binary(kind))


def _add_partitions(file: InputFile, batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """The batch with the columns that stand in the file's name, as far as `names` has them."""
    for name in names:
        if name in file.partitions:
            (value,) = text_array([file.partitions[name]])
            values = pa.repeat(value, batch.num_rows)
            batch = batch.append_column(name, values)
    return batch
