"""The input files: found, downloaded where they are remote, hashed, and read row by row.

Strangers' Parquet becomes batches of one known schema.
"""

import glob
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.job.columns import INPUT_IMAGE_COLUMNS, PROMPT_COLUMNS
from imagekiln.steps.job.job import ColumnNames, Job
from imagekiln.steps.plan.column_readers import (
    COLUMN_READERS,
    PASSTHROUGH_MARK,
    Cells,
    passthrough_schema,
    read_passthrough,
)
from imagekiln.steps.plan.foreign_formats import describe_foreign_format
from imagekiln.steps.plan.input_images import (
    ImageDigests,
    InputImages,
    holds_image_bytes,
    require_image_type,
)
from imagekiln.steps.runs.tables import COLUMN_TYPES, REJECTED_SCHEMA
from imagekiln.steps.storage.failures import (
    error_reason,
    explain_storage_error,
    is_storage_error,
    translate_errors,
)
from imagekiln.steps.storage.object_store import open_filesystem
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path

CHUNK_BYTES = 8 * 2**20
# A row group is decoded whole: one that claims more could end the process instead of failing.
MAX_ROW_GROUP_BYTES = 4 * 2**30
MAX_LISTED_COLUMNS = 12
UNREADABLE_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, MemoryError)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file: the name that the user knows, its path on this disk, its content's hash."""

    uri: str
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class InputFile:
    """A source whose footer was read.

    `column_names` are the file's names of our columns, `passthrough` the columns that are carried.
    """

    source: SourceFile
    rows: int
    column_names: dict[str, str]
    passthrough: pa.Schema


def read_input_files(job: Job, folder: Path) -> tuple[InputFile, ...]:
    """Find the job's prompt files, hash them and read their footers, once for a command.

    Remote files are downloaded to `folder`. Raises BadInput, Missing, TryAgain.
    """
    sources = gather_sources(job.prompt_patterns, folder)
    return read_footers(sources, job.columns, job.carry)


def input_fingerprint(files: Iterable[InputFile]) -> str:
    """One hash for the whole input: its files' contents in order, whatever the files are called."""
    digests = "".join(file.source.sha256 for file in files)
    return hashlib.sha256(digests.encode()).hexdigest()


def gather_sources(patterns: tuple[str, ...], folder: Path) -> tuple[SourceFile, ...]:
    """Every file that the patterns match, in the order of pattern and name.

    Remote files are downloaded to `folder`, so that what is hashed is what is read.
    Raises Missing where a pattern matches nothing, TryAgain where storage fails.
    """
    sources: list[SourceFile] = []
    for pattern in patterns:
        uris = expand_pattern(pattern)
        if not uris:
            raise Missing(f"{pattern}: {_describe_absence(pattern)}")
        for uri in uris:
            if is_remote_uri(pattern):
                source = _download(uri, folder / f"{len(sources):05d}.parquet")
            else:
                source = _hash_file(uri)
            sources.append(source)
    return tuple(sources)


def expand_pattern(pattern: str) -> list[str]:
    """The names that a pattern matches, sorted. A remote one without a `*` is not looked up."""
    return _expand_remote(pattern) if is_remote_uri(pattern) else _expand_local(pattern)


def _expand_local(pattern: str) -> list[str]:
    path = resolve_path(pattern.removeprefix("file://"))
    with translate_errors(pattern):
        if Path(path).is_dir():
            raise BadInput(f"{pattern}: {_describe_folder(path.rstrip('/'))}")
        names = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))
    for name in names:
        if not name.isprintable():
            raise BadInput(
                f"{pattern}: finds a file with an unprintable name, {name!a}. Rename it."
            )
    return names


def _describe_absence(pattern: str) -> str:
    if is_remote_uri(pattern):
        return "no such file or bucket. Check `prompts`."
    path = resolve_path(pattern.removeprefix("file://"))
    if Path(path).is_absolute():
        return "no such file. Check `prompts`."
    return (
        f"no such file as {Path(path).absolute()}. Check `prompts`: "
        "it is relative to the working directory, not to the job file."
    )


def _describe_folder(folder: str) -> str:
    """The problem with a folder as prompts, and a pattern that matches files in it, if any does."""
    if any(Path(folder).glob("*.parquet")):
        return f"is a folder. Write {folder}/*.parquet."
    if any(Path(folder).rglob("*.parquet")):
        return f"is a folder. Write {folder}/**/*.parquet."
    return "is a folder without Parquet files. Check `prompts`."


def _expand_remote(pattern: str) -> list[str]:
    filesystem, path = open_filesystem(pattern)
    protocol = pattern.partition("://")[0]
    with translate_errors(pattern):
        if not any(character in path for character in "*?["):
            return [pattern]
        return [f"{protocol}://{name}" for name in sorted(filesystem.glob(path))]


def _hash_file(path: str) -> SourceFile:
    digest = hashlib.sha256()
    with translate_errors(path), Path(path).open("rb") as file:
        for chunk in _read_chunks(file):
            digest.update(chunk)
    return SourceFile(path, Path(path), digest.hexdigest())


def _download(uri: str, path: Path) -> SourceFile:
    filesystem, remote_path = open_filesystem(uri)
    digest = hashlib.sha256()
    with (
        translate_errors(uri),
        filesystem.open(remote_path, "rb", block_size=CHUNK_BYTES) as source,
        path.open("wb") as copy,
    ):
        for chunk in _read_chunks(source):
            digest.update(chunk)
            copy.write(chunk)
    return SourceFile(uri, path, digest.hexdigest())


def _read_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def read_footers(
    sources: tuple[SourceFile, ...], columns: ColumnNames, carry: tuple[str, ...]
) -> tuple[InputFile, ...]:
    """Read every footer, so that a bad file fails before any row is read.

    Raises BadInput, TryAgain.
    """
    files = tuple(_read_footer(source, columns, carry) for source in sources)
    if not any(file.rows for file in files):
        raise BadInput(f"{sources[0].uri}: has no rows. Check `prompts`.")
    for file in files:
        if file.passthrough != files[0].passthrough:
            raise BadInput(
                f"{file.source.uri}: the columns to carry have other types than in "
                f"{files[0].source.uri}. Give them one type in all files."
            )
    return files


def _read_footer(source: SourceFile, columns: ColumnNames, carry: tuple[str, ...]) -> InputFile:
    try:
        metadata = pq.read_metadata(source.path)
        schema = metadata.schema.to_arrow_schema()
    except UNREADABLE_ERRORS as error:
        raise _unreadable_error(source, error) from error
    names = _match_columns(source, schema, columns, carry)
    _refuse_large_row_groups(source, metadata)
    return InputFile(
        source=source,
        rows=metadata.num_rows,
        column_names=names,
        passthrough=passthrough_schema(schema, carry, source.uri),
    )


def _match_columns(
    source: SourceFile, schema: pa.Schema, columns: ColumnNames, carry: tuple[str, ...]
) -> dict[str, str]:
    """The file's names of our columns. Raises BadInput where one has a type that we do not take."""
    if columns.prompt not in schema.names:
        listed = ", ".join(schema.names[:MAX_LISTED_COLUMNS]) or "none"
        raise BadInput(
            f"{source.uri}: has no column {columns.prompt!r} (it has {listed}). Set columns.prompt."
        )
    names = {ours: theirs for ours, theirs in columns if theirs in schema.names}
    for name in (*names.values(), *carry):
        if schema.names.count(name) > 1:
            raise BadInput(f"{source.uri}: has more than one column {name!r}. Rename one.")
    for column in PROMPT_COLUMNS:
        if column.name not in names:
            continue
        name = names[column.name]
        kind = schema.field(name).type
        where = f"{source.uri}: column {name!r}"
        if column.kind == "image":
            require_image_type(kind, where)
        else:
            COLUMN_READERS[column.kind](pa.array([], kind), where)
    return names


def _refuse_large_row_groups(source: SourceFile, metadata: pq.FileMetaData) -> None:
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if not 0 <= size <= MAX_ROW_GROUP_BYTES:
            raise BadInput(
                f"{source.uri}: row group {group} claims {size} bytes. Write smaller row groups."
            )


def _unreadable_error(source: SourceFile, error: Exception) -> KilnError:
    """Explain an input file that cannot be read: storage failed, or the file is damaged."""
    uri = source.uri
    if is_storage_error(error) and (failure := explain_storage_error(uri, error)):
        return failure
    if problem := describe_foreign_format(source.path, uri):
        return BadInput(f"{uri}: {problem}")
    reason = error_reason(error)
    if isinstance(error, MemoryError):
        return BadInput(
            f"{uri}: needs more memory than there is ({reason}). Write it in smaller row groups."
        )
    return BadInput(f"{uri}: is no whole Parquet file ({reason}). Write it again.")


# Pages are read as they are needed: by default, pyarrow keeps every column chunk that it has read.
PARQUET_OPTIONS = {
    "page_checksum_verification": True,
    "pre_buffer": False,
    "buffer_size": 2**20,
}
BATCH_ROWS = 65_536
MIN_BATCH_ROWS = 256
BATCH_BYTES = 16 * 2**20


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


def passthrough_names(count: int) -> tuple[str, ...]:
    """What the columns to carry are called within planning: theirs may be any text."""
    return tuple(f"carry_{index}" for index in range(count))


def iter_prompt_batches(
    files: tuple[InputFile, ...], images: InputImages
) -> Iterator[pa.RecordBatch]:
    """Every row of every file, in order, numbered from 0 over all files.

    Raises BadInput where a file is damaged, TryAgain where storage fails.
    """
    schema = prompt_schema(files)
    first_row = 0
    for file in files:
        rows = 0
        for batch in _read_file(file, first_row, schema, images):
            yield batch
            rows += batch.num_rows
        if rows != file.rows:
            reason = f"its footer says {file.rows} rows, its pages hold {rows}"
            raise _unreadable_error(file.source, ValueError(reason))
        first_row += rows


def _read_file(
    file: InputFile, first_row: int, schema: pa.Schema, images: InputImages
) -> Iterator[pa.RecordBatch]:
    columns = [*dict.fromkeys([*file.column_names.values(), *file.passthrough.names])]
    try:
        with pq.ParquetFile(file.source.path, **PARQUET_OPTIONS) as parquet:
            row = first_row
            for batch in parquet.iter_batches(_batch_rows(file, parquet, columns), columns=columns):
                yield _convert_batch(file, batch, row, schema, images)
                row += batch.num_rows
    except UNREADABLE_ERRORS as error:
        raise _unreadable_error(file.source, error) from error


def _batch_rows(file: InputFile, parquet: pq.ParquetFile, columns: list[str]) -> int:
    """Rows to read at a time: fewer where texts are long or images large, to bound memory."""
    metadata = parquet.metadata
    size = max(1, _uncompressed_bytes(metadata, {*columns}))
    image_types = (
        parquet.schema_arrow.field(file.column_names[name]).type
        for name in INPUT_IMAGE_COLUMNS
        if name in file.column_names
    )
    lowest = 1 if any(map(holds_image_bytes, image_types)) else MIN_BATCH_ROWS
    return max(lowest, min(BATCH_ROWS, BATCH_BYTES * int(metadata.num_rows) // size))


def _uncompressed_bytes(metadata: pq.FileMetaData, columns: set[str]) -> int:
    size = 0
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            path = chunk.path_in_schema
            if path in columns or path.partition(".")[0] in columns:
                size += int(chunk.total_uncompressed_size)
    return size


def _convert_batch(
    file: InputFile, batch: pa.RecordBatch, first_row: int, schema: pa.Schema, images: InputImages
) -> pa.RecordBatch:
    rows = pa.array(np.arange(first_row, first_row + batch.num_rows, dtype=np.int64))
    wrong = pa.nulls(batch.num_rows, pa.string())
    arrays: list[pa.Array] = []
    for column in PROMPT_COLUMNS:
        name = file.column_names.get(column.name)
        if name is None:
            arrays.append(pa.nulls(batch.num_rows, COLUMN_TYPES[column.kind]))
            continue
        cells: Cells | ImageDigests
        if column.kind == "image":
            cells = images.digest_column(batch.column(name), file.source.uri)
        else:
            where = f"{file.source.uri}: column {name!r}"
            cells = COLUMN_READERS[column.kind](batch.column(name), where)
        arrays.append(cells.values)
        wrong = cells.mark_invalid(wrong, column.name)
    carried: list[pa.Array] = []
    for name in file.passthrough.names:
        where = f"{file.source.uri}: column {name!r}"
        passthrough = read_passthrough(batch.column(name), where)
        carried.append(passthrough.values)
        wrong = passthrough.mark_invalid(wrong, PASSTHROUGH_MARK)
    return pa.RecordBatch.from_arrays([rows, *arrays, wrong, *carried], schema=schema)


def locate_rejected_rows(files: tuple[InputFile, ...], rejected: pa.RecordBatch) -> pa.RecordBatch:
    """Rejected rows as REJECTED_SCHEMA: with their file, and their row in it, counted from 0."""
    starts = np.cumsum([0, *(file.rows for file in files)])
    rows = rejected["row"].to_numpy()
    file_numbers = np.searchsorted(starts, rows, side="right") - 1
    uris = pa.DictionaryArray.from_arrays(
        pa.array(file_numbers, pa.int32()), [file.source.uri for file in files]
    )
    columns = [
        rejected["row"],
        uris.cast(pa.string()),
        pa.array(rows - starts[file_numbers]),
        rejected["column"],
        rejected["reason"],
    ]
    return pa.RecordBatch.from_arrays(columns, schema=REJECTED_SCHEMA)
