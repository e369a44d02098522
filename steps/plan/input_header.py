"""Whether a file of prompts has the job's columns, by its header alone: before it is downloaded."""

import os
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.column_readers import passthrough_schema
from imagekiln.steps.plan.input_files import (
    UNREADABLE_ERRORS,
    add_partition_columns,
    judge_footer,
    match_columns,
    no_rows_error,
    refuse_number_prompts,
    unreadable_error,
)
from imagekiln.steps.plan.input_formats import (
    DELIMITERS,
    TEXT_FORMATS,
    detect_format,
    empty_file_error,
    read_schema,
)
from imagekiln.steps.plan.source_files import SourceFile, is_web_uri
from imagekiln.steps.plan.text_formats import open_delimited
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.filesystem import open_object
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.uri import resolve_path

HEAD_BYTES = 2**20
MAX_FOOTER_BYTES = 64 * 2**20  # of files of our size, a footer has kilobytes
FOOTER_END_BYTES = 8  # a Parquet file ends with the length of its footer, and the format's name


class UnknownHeader(BadInput):
    """A file can be read, but what is read of it does not tell its columns."""


def check_header(job: Job, uri: str, *, only_file: bool) -> bool:
    """Raise what planning would raise for a file; False where only names of columns were judged.

    Reads the footer of Parquet, and of other formats the first mebibyte: shorter text is judged
    whole. The columns of JSON Lines are those of all lines of all files, so they are known only
    where the one file is that short. Raises BadInput, Missing, TryAgain, UnknownHeader.
    """
    with temporary_folder("imagekiln-header-") as folder:
        source = SourceFile(uri, Path(folder, "head"), sha256="")
        name = resolve_path(uri)
        with translate_errors(uri), open_object(name, HEAD_BYTES) as file:
            head = _read_head(file)
            source.path.write_bytes(head)
            source = replace(source, kind=detect_format(source))
            is_whole = len(head) <= HEAD_BYTES
            if source.kind == "parquet":
                _check_parquet(job, source, None if is_whole else file, only_file=only_file)
                return True
        if source.kind in TEXT_FORMATS and not head:
            raise _empty_file_problem(source, only_file=only_file)
        if source.kind in DELIMITERS:
            return _check_delimited(job, source, is_whole=is_whole, only_file=only_file)
        return _check_rest(job, source, is_whole=is_whole, only_file=only_file)


def _read_head(file: BinaryIO) -> bytes:
    """A byte more than is judged, or the whole of a shorter file. Streams give less at a time."""
    head = b""
    while len(head) <= HEAD_BYTES:
        chunk = file.read(HEAD_BYTES + 1 - len(head))
        if not chunk:
            break
        head += chunk
    return head


def _empty_file_problem(source: SourceFile, *, only_file: bool) -> BadInput:
    """Planning skips an empty file among others."""
    if only_file:
        return empty_file_error(source)
    return UnknownHeader(f"{source.uri}: is empty, so other files decide on the columns.")


def _check_parquet(
    job: Job, source: SourceFile, remote: BinaryIO | None, *, only_file: bool
) -> None:
    """Judge the footer of the copy, or of the remote file where the copy is only its beginning."""
    if remote is not None:
        _require_small_footer(source.uri, remote)
    try:
        metadata = pq.read_metadata(source.path if remote is None else remote)
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(source, error) from error
    footer = judge_footer(source, metadata, job.columns, job.carry)
    if only_file and not footer.rows:
        raise no_rows_error(source)


def _require_small_footer(uri: str, file: BinaryIO) -> None:
    """Raise UnknownHeader where a footer is out of reach, or so long that it may be an attack."""
    try:
        with translate_errors(uri):
            size = file.seek(0, os.SEEK_END)
            file.seek(size - FOOTER_END_BYTES)
            end = file.read(FOOTER_END_BYTES)
    except (KilnError, ValueError) as error:
        if not is_web_uri(uri):
            raise
        raise UnknownHeader(
            f"{uri}: can be read, but its server does not send the end alone, which has the "
            "columns."
        ) from error
    length = int.from_bytes(end[:4], "little")
    if MAX_FOOTER_BYTES < length < size:
        raise UnknownHeader(
            f"{uri}: can be read, but its footer of {length} bytes is too long to be judged here."
        )


def _check_delimited(job: Job, source: SourceFile, *, is_whole: bool, only_file: bool) -> bool:
    """Judge a CSV or TSV file by its header, and by its rows where they are all there."""
    schema = read_schema(source)
    name = _match_schema(job, source, schema)["prompt"]
    if not is_whole:
        return False
    with open_delimited(source.path, source.uri, DELIMITERS[source.kind]) as rows:
        batches = [*rows.batches]
    if name in schema.names:
        refuse_number_prompts(source, name, (batch.column(name) for batch in batches))
    if only_file and not batches:
        raise no_rows_error(source)
    return True


def _check_rest(job: Job, source: SourceFile, *, is_whole: bool, only_file: bool) -> bool:
    """Judge JSON Lines by all rows, and Arrow by its schema."""
    is_json = source.kind == "jsonl"
    if is_whole:
        schema = read_schema(source, frozenset(name for _, name in job.columns))
        if only_file or not is_json:
            _match_schema(job, source, schema)
            return is_json
    raise UnknownHeader(f"{source.uri}: can be read, but its beginning does not tell its columns.")


def _match_schema(job: Job, source: SourceFile, schema: pa.Schema) -> dict[str, str]:
    """The file's names of our columns, all of which planning takes. Raises BadInput."""
    schema = add_partition_columns(source, schema)
    names = match_columns(source, schema, job.columns, job.carry)
    passthrough_schema(schema, job.carry, source.uri)
    return names
