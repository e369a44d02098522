"""How many rows the prompts have, and which columns, before planning.

Parquet says so in its footer. Files of other formats are read whole, up to a bound, as planning
reads them.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptTemplate
from imagekiln.steps.plan.input_files import UNREADABLE_ERRORS, unreadable_error
from imagekiln.steps.plan.input_formats import convert_sources
from imagekiln.steps.plan.source_files import (
    CHUNK_BYTES,
    DATA_SUFFIXES,
    SourceFile,
    expand_pattern,
    is_web_uri,
    suffix_of,
)
from imagekiln.steps.plan.template_count import count_prompts, load_recipes
from imagekiln.steps.runtime.figures import format_bytes
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.filesystem import open_object
from imagekiln.steps.storage.local import local_path, open_file, temporary_folder
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path

READERS = 16
# Of all files without a footer: a command that only submits shall not take as long as planning.
MAX_READ_BYTES = 32 * 10**6


@dataclass(frozen=True, slots=True)
class RowCount:
    """The rows of the prompts, and the names of the columns that any of their files has."""

    rows: int
    columns: frozenset[str]


def count_rows(job: Job) -> RowCount:
    """Count the rows of the job's prompts, or the prompts that its templates make.

    Raises BadInput where a file is malformed, or files without a footer have more bytes than are
    read for a count; Missing, TryAgain.
    """
    settings = job.prompts
    if not isinstance(settings, PromptTemplate):
        return _count_file_rows(job.prompt_patterns)
    table = RowCount(1, frozenset())
    if settings.table_patterns:
        table = _count_file_rows(settings.table_patterns)
    count = count_prompts(settings, load_recipes(settings), table.rows)
    swept = {getattr(job.columns, name) for name in settings.sweep.values}
    return RowCount(count.prompts, table.columns | swept)


def _count_file_rows(patterns: tuple[str, ...]) -> RowCount:
    uris: list[str] = []
    for pattern in patterns:
        names = expand_pattern(pattern)
        if not names:
            raise Missing(f"{pattern}: no such file or bucket. Check `prompts`.")
        uris += names
    with ThreadPoolExecutor(READERS) as pool:
        footers = list(pool.map(_read_footer, uris))
    footers += _convert_rest([uri for uri, footer in zip(uris, footers, strict=True) if not footer])
    counted = [footer for footer in footers if footer is not None]
    columns = (footer.schema.to_arrow_schema().names for footer in counted)
    return RowCount(sum(footer.num_rows for footer in counted), frozenset().union(*columns))


def _read_footer(uri: str) -> pq.FileMetaData | None:
    """The footer of a Parquet file; None where the file is of another format."""
    if DATA_SUFFIXES.get(suffix_of(uri), "parquet") != "parquet":
        return None
    try:
        with _open(uri) as file:
            return pq.read_metadata(file)
    except (pa.ArrowException, ValueError):  # the latter where a web server sends no end alone
        return None


@contextmanager
def _open(uri: str, block_bytes: int = CHUNK_BYTES) -> Iterator[BinaryIO]:
    name = resolve_path(uri)
    with translate_errors(uri):
        if not is_remote_uri(name):
            with open_file(local_path(name)) as file:
                yield file
            return
        with open_object(name, block_bytes) as file:
            yield file


def _convert_rest(uris: list[str]) -> list[pq.FileMetaData]:
    """The footers that files have once they are converted to Parquet."""
    if not uris:
        return []
    with temporary_folder("imagekiln-rows-") as folder:
        sources: list[SourceFile] = []
        bytes_left = MAX_READ_BYTES
        for number, uri in enumerate(uris):
            source = SourceFile(uri, Path(folder, f"{number:05d}.download"), sha256="")
            bytes_left -= _copy(source, bytes_left)
            sources.append(source)
        converted = convert_sources(tuple(sources), frozenset(), Path(folder))
        return [_read_converted(source) for source in converted]


def _copy(source: SourceFile, bytes_left: int) -> int:
    """Copy a file to its path, and give its size. Raises BadInput for more bytes than are left."""
    size = 0
    # Many web servers know no ranges, and do not say so: one request, for all of it.
    block_bytes = 0 if is_web_uri(source.uri) else CHUNK_BYTES
    with _open(source.uri, block_bytes) as file, source.path.open("wb") as copy:
        while chunk := file.read(CHUNK_BYTES):
            size += len(chunk)
            if size > bytes_left:
                raise _too_large_error(source.uri)
            copy.write(chunk)
    return size


def _too_large_error(uri: str) -> BadInput:
    return BadInput(
        f"{uri}: files that are not Parquet are read up to {format_bytes(MAX_READ_BYTES)} in all "
        "for a count of their rows; `imagekiln estimate JOB` and planning count them all."
    )


def _read_converted(source: SourceFile) -> pq.FileMetaData:
    try:
        return pq.read_metadata(source.path)
    except UNREADABLE_ERRORS as error:
        raise unreadable_error(source, error) from error
