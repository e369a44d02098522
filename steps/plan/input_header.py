"""Whether a file of prompts has the job's columns, by its header alone: before it is downloaded."""

import tempfile
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.column_readers import passthrough_schema
from imagekiln.steps.plan.input_files import (
    UNREADABLE_ERRORS,
    add_partition_columns,
    footer_schema,
    match_columns,
    unreadable_error,
)
from imagekiln.steps.plan.input_formats import DELIMITERS, detect_format, read_schema
from imagekiln.steps.plan.source_files import SourceFile
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.object_store import open_filesystem
from imagekiln.steps.storage.uri import resolve_path

HEAD_BYTES = 2**20


def check_header(job: Job, uri: str, *, only_file: bool) -> bool:
    """Raise what planning would raise for the columns of a file; False where they are not known.

    Reads the footer of Parquet, and of other formats the first mebibyte. The columns of JSON Lines
    are those of all lines of all files, so they are known only where the one file is that short.
    Raises BadInput, Missing, TryAgain.
    """
    with tempfile.TemporaryDirectory(prefix="imagekiln-header-") as folder:
        source = SourceFile(uri, Path(folder, "head"), sha256="")
        schema = _read_header(source, only_file=only_file)
    if schema is None:
        return False
    schema = add_partition_columns(source, schema)
    match_columns(source, schema, job.columns, job.carry)
    passthrough_schema(schema, job.carry, uri)
    return True


def _read_header(source: SourceFile, *, only_file: bool) -> pa.Schema | None:
    """The columns of a file, whose beginning is copied to the source's path; None if unknown."""
    filesystem, path = open_filesystem(resolve_path(source.uri))
    with (
        translate_errors(source.uri),
        filesystem.open(path, "rb", block_size=HEAD_BYTES) as file,
    ):
        head = file.read(HEAD_BYTES + 1)
        source.path.write_bytes(head)
        kind = detect_format(source)
        if kind == "parquet":
            can_seek = file.size is not None  # some web servers send whole files only
            return _read_footer(source, file) if can_seek else None
        if kind in DELIMITERS:
            return read_schema(source) if head else None  # planning drops an empty one
        is_whole = 0 < len(head) <= HEAD_BYTES
        has_all_columns = is_whole and (kind != "jsonl" or only_file)
        return read_schema(source) if has_all_columns else None


def _read_footer(source: SourceFile, file: BinaryIO) -> pa.Schema:
    try:
        return footer_schema(pq.read_metadata(file))
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(source, error) from error
