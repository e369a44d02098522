"""The input files: found, brought onto this disk where they are elsewhere, and fingerprinted."""

import glob
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.job.job import ColumnNames
from imagekiln.steps.plan.columns import COLUMN_READERS, PROMPT_COLUMNS, passthrough_schema
from imagekiln.steps.plan.input_images import require_image_type
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS
from imagekiln.steps.storage.failures import (
    error_reason,
    explain_storage_error,
    is_storage_error,
    translate_errors,
)
from imagekiln.steps.storage.object_store import open_filesystem
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path

CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file: the name the user knows, where it lies on this disk, and its content's hash."""

    uri: str
    path: Path
    sha256: str


def gather_sources(patterns: tuple[str, ...], spool: Path) -> tuple[SourceFile, ...]:
    """Every file that the patterns name, in the order of pattern and name.

    Files from elsewhere are copied to `spool`, so that what is hashed is what is read.
    Raises Missing where a pattern names nothing, TryAgain where storage fails.
    """
    sources: list[SourceFile] = []
    for pattern in patterns:
        remote, found = is_remote_uri(pattern), expand_pattern(pattern)
        if not found:
            raise Missing(f"{pattern}: no such file or bucket. Check `prompts`.")
        for uri in found:
            number = len(sources)
            sources.append(
                _download(uri, spool / f"{number:05d}.parquet") if remote else _hash_file(uri)
            )
    return tuple(sources)


def expand_pattern(pattern: str) -> list[str]:
    """The names that a pattern stands for, sorted. One that is elsewhere and has no `*` is not looked up."""
    return _expand_remote(pattern) if is_remote_uri(pattern) else _expand_local(pattern)


def input_fingerprint(sources: tuple[SourceFile, ...]) -> str:
    """One hash for the whole input: its files' contents in order, whatever the files are called."""
    return hashlib.sha256("".join(source.sha256 for source in sources).encode()).hexdigest()


def _expand_local(pattern: str) -> list[str]:
    path = resolve_path(pattern.removeprefix("file://"))
    with translate_errors(pattern):
        if Path(path).is_dir():
            raise BadInput(f"{pattern}: is a folder. Write {path.rstrip('/')}/*.parquet.")
        found = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))
    for name in found:
        if not name.isprintable():
            raise BadInput(
                f"{pattern}: finds a file with an unprintable name, {name!a}. Rename it."
            )
    return found


def _expand_remote(pattern: str) -> list[str]:
    files, path = open_filesystem(pattern)
    protocol = pattern.partition("://")[0]
    with translate_errors(pattern):
        if not any(sign in path for sign in "*?["):
            return [pattern]
        return [f"{protocol}://{name}" for name in sorted(files.glob(path))]


def _hash_file(path: str) -> SourceFile:
    digest = hashlib.sha256()
    with translate_errors(path), Path(path).open("rb") as file:
        for chunk in _read_chunks(file):
            digest.update(chunk)
    return SourceFile(path, Path(path), digest.hexdigest())


def _download(uri: str, copy: Path) -> SourceFile:
    files, path = open_filesystem(uri)
    digest = hashlib.sha256()
    with (
        translate_errors(uri),
        files.open(path, "rb", block_size=CHUNK_BYTES) as file,
        copy.open("wb") as out,
    ):
        for chunk in _read_chunks(file):
            digest.update(chunk)
            out.write(chunk)
    return SourceFile(uri, copy, digest.hexdigest())


def _read_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


# A row group is decoded whole, so one that claims more than this could end the process instead of failing.
MAX_ROW_GROUP_BYTES = 4 * 2**30
UNREADABLE_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, MemoryError)


@dataclass(frozen=True, slots=True)
class InputFile:
    """A source whose footer was read: how many rows it has, and the columns that we take from it."""

    source: SourceFile
    rows: int
    column_names: dict[str, str]
    passthrough: pa.Schema


def read_footers(
    sources: tuple[SourceFile, ...], columns: ColumnNames, carry: tuple[str, ...]
) -> tuple[InputFile, ...]:
    """Read every footer before any row, so that a wrong file fails early. Raises BadInput, TryAgain."""
    files = tuple(_read_footer(source, columns, carry) for source in sources)
    if not any(file.rows for file in files):
        raise BadInput(f"{sources[0].uri}: has no rows. Check `prompts`.")
    for file in files:
        if file.passthrough != files[0].passthrough:
            raise BadInput(
                f"{file.source.uri}: the columns to carry have other types than in {files[0].source.uri}. "
                "Give them one type in all files."
            )
    return files


def _read_footer(source: SourceFile, columns: ColumnNames, carry: tuple[str, ...]) -> InputFile:
    try:
        metadata = pq.read_metadata(source.path)
        there = metadata.schema.to_arrow_schema()
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(source, error) from error
    names = _match_columns(source, there, columns, carry)
    _refuse_large_row_groups(source, metadata)
    return InputFile(source, metadata.num_rows, names, passthrough_schema(there, carry, source.uri))


def _match_columns(
    source: SourceFile, there: pa.Schema, columns: ColumnNames, carry: tuple[str, ...]
) -> dict[str, str]:
    """What our columns are called in the file, of a type that we take."""
    if columns.prompt not in there.names:
        has = ", ".join(there.names[:12]) or "none"
        raise BadInput(
            f"{source.uri}: has no column {columns.prompt!r} (it has {has}). Set columns.prompt."
        )
    names = {ours: theirs for ours, theirs in columns if theirs in there.names}
    for name in (*names.values(), *carry):
        if there.names.count(name) > 1:
            raise BadInput(f"{source.uri}: has more than one column {name!r}. Rename one.")
    for ours, theirs in names.items():
        kind, where = there.field(theirs).type, f"{source.uri}: column {theirs!r}"
        if ours in INPUT_IMAGE_COLUMNS:
            require_image_type(kind, where)
        else:
            COLUMN_READERS[PROMPT_COLUMNS[ours]](pa.array([], kind), where)
    return names


def _refuse_large_row_groups(source: SourceFile, metadata: pq.FileMetaData) -> None:
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if not 0 <= size <= MAX_ROW_GROUP_BYTES:
            raise BadInput(
                f"{source.uri}: row group {group} claims {size} bytes. Write smaller row groups."
            )


def unreadable_error(source: SourceFile, error: Exception) -> KilnError:
    """What to say of an input file that does not read: storage failed, or the file is damaged."""
    if is_storage_error(error) and (failure := explain_storage_error(source.uri, error)):
        return failure
    if isinstance(error, MemoryError):
        return BadInput(
            f"{source.uri}: needs more memory than there is ({error_reason(error)}). Write it in smaller row groups."
        )
    return BadInput(
        f"{source.uri}: is no whole Parquet file ({error_reason(error)}). Write it again."
    )
