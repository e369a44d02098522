"""Input files of other formats, converted once to Parquet on this disk; the rest reads only that.

A file's format follows from its first bytes, or else from the ending of its name.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.source_files import DATA_SUFFIXES, SourceFile, suffix_of
from imagekiln.steps.plan.text_formats import (
    BATCH_ROWS,
    JsonColumns,
    open_delimited,
    open_prompt_lines,
)
from imagekiln.steps.storage.failures import error_reason, is_storage_error, translate_errors
from imagekiln.steps.storage.local import open_file

PARQUET_MAGIC = b"PAR1"
ARROW_FILE_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
REFUSED_STARTS = {
    rb"FEA1": "is a Feather file of version 1. Write it again as version 2, or as Parquet.",
    rb"\x1f\x8b": "is compressed with gzip. Unpack it.",
    rb"\x28\xb5\x2f\xfd": "is compressed with zstd. Unpack it.",
    rb"PK\x03\x04": "is a zip archive or a workbook of a spreadsheet. Unpack it, or save it as "
    "CSV.",
    rb"\xd0\xcf\x11\xe0": "is a workbook of Excel. Save it as CSV.",
    rb"(?i)\s*<(!doctype\s+)?html": "is a web page. Name the file itself; of a Google Sheet, "
    "download it as CSV.",
}
SAMPLE_BYTES = 4096
TEXT_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
DELIMITERS = {"csv": ",", "tsv": "\t"}
TEXT_FORMATS = {"csv", "tsv", "json", "txt"}
# Of pyarrow, which has no error of its own for some damage.
UNREADABLE_ERRORS = (pa.ArrowException, OSError, ValueError)
# Opens the rows of a file at a path; its messages begin with the file's name.
RowReader: TypeAlias = Callable[[Path, str], AbstractContextManager[pa.RecordBatchReader]]


def convert_sources(sources: tuple[SourceFile, ...], folder: Path) -> tuple[SourceFile, ...]:
    """Convert sources of other formats to Parquet in `folder`.

    Text files without a byte are dropped, which Spark writes for a partition without rows. Raises
    BadInput, TryAgain.
    """
    formats = [(source, _detect_format(source)) for source in sources]
    filled = [
        (source, kind)
        for source, kind in formats
        if kind not in TEXT_FORMATS or source.path.stat().st_size
    ]
    if not filled:
        raise BadInput(f"{sources[0].uri}: is empty. Check `prompts`.")

    columns = JsonColumns()  # one for all, so that all files have the same columns
    for source, kind in filled:
        if kind == "json":
            columns.scan(source.path, source.uri)
    readers: dict[str, RowReader] = {
        "arrow": open_arrow,
        "json": columns.open,
        "txt": open_prompt_lines,
        **{name: partial(open_delimited, delimiter=mark) for name, mark in DELIMITERS.items()},
    }

    converted = []
    for number, (source, kind) in enumerate(filled):
        if kind in readers:
            path = folder / f"{number:05d}-converted.parquet"
            _write_parquet(source, readers[kind], path)
            if source.path.parent == folder:  # a download, which nothing reads again
                source.path.unlink()
            source = replace(source, path=path, kind=kind)
        converted.append(source)
    return tuple(converted)


def _detect_format(source: SourceFile) -> str:
    """The format of a file, `parquet` if it is unknown. Raises BadInput, TryAgain."""
    with translate_errors(source.uri), open_file(source.path) as file:
        start = file.read(SAMPLE_BYTES)
    if start.startswith(PARQUET_MAGIC):
        return "parquet"
    for pattern, problem in REFUSED_STARTS.items():
        if re.match(pattern, start):
            raise BadInput(f"{source.uri}: {problem}")
    if start.startswith((ARROW_FILE_MAGIC, ARROW_STREAM_MAGIC)):
        return "arrow"
    return DATA_SUFFIXES.get(suffix_of(source.uri), "parquet")


def _write_parquet(source: SourceFile, read: RowReader, path: Path) -> None:
    with (
        translate_errors(str(path)),
        read(source.path, source.uri) as rows,
        pq.ParquetWriter(path, rows.schema) as writer,
    ):
        for batch in rows:
            writer.write_batch(batch)


@contextmanager
def open_arrow(path: Path, where: str) -> Iterator[pa.RecordBatchReader]:
    """The rows of an Arrow IPC file or stream, which Feather files of version 2 are too."""
    try:
        with pa.OSFile(str(path)) as file:
            is_stream = file.read(len(ARROW_FILE_MAGIC)) != ARROW_FILE_MAGIC
            file.seek(0)
            if is_stream:
                stream = pa.ipc.open_stream(file)
                yield pa.RecordBatchReader.from_batches(stream.schema, _slice_batches(stream))
                return
            reader = pa.ipc.open_file(file)
            batches = map(reader.get_batch, range(reader.num_record_batches))
            yield pa.RecordBatchReader.from_batches(reader.schema, _slice_batches(batches))
    except UNREADABLE_ERRORS as error:
        if is_storage_error(error):
            raise
        raise BadInput(
            f"{where}: cannot be read as Arrow ({error_reason(error)}). Write it again, "
            "or as Parquet."
        ) from error


def _slice_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for column in batch.columns:
            # Offsets that lead outside the data would be read as text. Text that is not UTF-8
            # costs only its rows, later.
            kind = TEXT_AS_BYTES.get(column.type)
            if kind is not None:
                column = column.view(kind)
            column.validate(full=True)
        for first in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(first, BATCH_ROWS)
