"""Source files of prompts: find, download and hash them, and convert them to Parquet.

The rest of planning reads only Parquet files on the local disk. The format of a file is detected
from its first bytes, or else from its suffix.
"""

import glob
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptList
from imagekiln.steps.plan.text_formats import (
    BATCH_ROWS,
    JsonColumns,
    open_delimited,
    open_prompt_lines,
)
from imagekiln.steps.runs.keys import prompt_list_key
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import error_reason, is_storage_error, translate_errors
from imagekiln.steps.storage.filesystem import open_filesystem, open_object
from imagekiln.steps.storage.local import open_file
from imagekiln.steps.storage.store import create_once
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path

CHUNK_BYTES = 8 * 2**20
DATA_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".txt": "txt",
}
# Often metadata files. In a folder, they are data only if there are no other data files.
AMBIGUOUS_SUFFIXES = (".json", ".txt")
# The log of such a table decides which files in its folder belong to it.
TABLE_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
LIST_SETTING = "prompts.texts"
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
# Errors of pyarrow for damaged files; it has no common base class for them.
UNREADABLE_ERRORS = (pa.ArrowException, OSError, ValueError)
# Opens a file at a path; the second argument names the file in messages.
RowReader: TypeAlias = Callable[[Path, str], AbstractContextManager[pa.RecordBatchReader]]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file: the user's name for it, its local path and the hash of its content.

    If the file was converted, `path` is the converted copy. With `has_lines`, the copy has a column
    of line numbers. `runs` are the ids of the runs whose images it lists.
    """

    uri: str
    path: Path
    sha256: str
    has_lines: bool = False
    runs: tuple[str, ...] = ()

    @property
    def partitions(self) -> dict[str, str | None]:
        """Hive partition columns: the folders named `column=value` in the file's path."""
        pairs = {}
        for folder in PurePosixPath(self.uri).parts[:-1]:
            name, equals_sign, value = folder.partition("=")
            if equals_sign and name:
                pairs[unquote(name)] = None if value == NULL_PARTITION else unquote(value)
        return pairs


def suffix_of(uri: str) -> str:
    """Return the suffix of a file name in lower case, such as `.csv`."""
    name = uri.partition("?")[0] if is_web_uri(uri) else uri
    return PurePosixPath(name).suffix.lower()


def gather_sources(patterns: tuple[str, ...], folder: Path) -> tuple[SourceFile, ...]:
    """Find and hash the files that the patterns match, in the order of patterns and names.

    Remote files are downloaded to `folder`. Raises Missing, TryAgain.
    """
    sources: list[SourceFile] = []
    for pattern in patterns:
        uris = expand_pattern(pattern)
        if not uris:
            place = Path(resolve_path(pattern.removeprefix("file://"))).absolute()
            raise Missing(
                f"{pattern}: no such file as {place}. Check `prompts`: it is relative to the "
                "working directory, not to the job file. Prompts themselves are written as "
                "`prompts: {texts: [...]}`."
            )
        for uri in uris:
            path = Path(uri)
            if is_remote_uri(uri):
                path = folder / f"{len(sources):05d}.download"
                _download(uri, path)
            with translate_errors(uri), open_file(path) as file:
                digest = hashlib.file_digest(file, "sha256")
            sources.append(SourceFile(uri, path, digest.hexdigest()))
    return tuple(sources)


def expand_pattern(pattern: str) -> list[str]:
    """Return the sorted names that a pattern matches. A folder stands for its data files."""
    if is_web_uri(pattern):
        open_filesystem(pattern)
        if pattern.endswith("/") or "*" in pattern.partition("?")[0]:
            raise BadInput(f"{pattern}: folders cannot be listed over HTTP. Name each file.")
        return [pattern]
    with translate_errors(pattern):
        found = _match_remote(pattern) if is_remote_uri(pattern) else _match_local(pattern)
    names: set[str] = set()
    for name, files in found.items():
        names.update([name] if files is None else _choose_data_files(files, name, pattern))
    if found and not names:
        raise BadInput(
            f"{pattern}: is a folder without files of prompts, whose names end in "
            f"{', '.join(DATA_SUFFIXES)}. Check `prompts`."
        )
    return sorted(names)


def _match_local(pattern: str) -> dict[str, list[str] | None]:
    """Return matching names. Folders map to the files in them, files to None."""
    path = resolve_path(pattern.removeprefix("file://"))
    names = [path] if Path(path).exists() else glob.glob(path, recursive=True)
    found: dict[str, list[str] | None] = {}
    for name in names:
        folder = Path(name)
        if folder.is_dir():
            found[str(folder)] = [str(file) for file in folder.rglob("*") if file.is_file()]
        else:
            found[name] = None
    return found


def _match_remote(pattern: str) -> dict[str, list[str] | None]:
    """Return matching names. Folders map to the files in them, files to None."""
    filesystem, path = open_filesystem(pattern)
    scheme = pattern.partition("://")[0]
    if not any(character in path for character in "*?["):
        try:
            kind = filesystem.info(path)["type"]
        except OSError:  # reading the file will report the reason
            kind = "file"
        if kind != "directory":
            return {pattern: None}
        entries = {path.rstrip("/"): {"type": kind}}
    else:
        entries = filesystem.glob(path, detail=True)
    found: dict[str, list[str] | None] = {}
    for name, entry in entries.items():
        is_folder = entry["type"] == "directory"
        files = [f"{scheme}://{file}" for file in filesystem.find(name)] if is_folder else None
        found[f"{scheme}://{name}"] = files
    return found


def _choose_data_files(names: list[str], folder: str, pattern: str) -> list[str]:
    """Select data files among `names`, without hidden files and folders such as `_SUCCESS`."""
    chosen = []
    for name in names:
        parts = PurePosixPath(name.removeprefix(folder).lstrip("/")).parts
        if label := next(filter(None, map(TABLE_LOGS.get, parts)), None):
            raise BadInput(
                f"{pattern}: is a {label} table, whose folder also holds deleted rows. "
                "Export its rows as Parquet."
            )
        is_hidden = any(part.startswith((".", "_")) for part in parts)
        if not is_hidden and suffix_of(name) in DATA_SUFFIXES:
            chosen.append(name)
    return [name for name in chosen if suffix_of(name) not in AMBIGUOUS_SUFFIXES] or chosen


def is_web_uri(uri: str) -> bool:
    """Return whether a URI is fetched over HTTP."""
    return uri.startswith(("http://", "https://"))


def _download(uri: str, path: Path) -> None:
    # Many web servers ignore range requests silently, so fetch the whole file in one request.
    block_bytes = 0 if is_web_uri(uri) else CHUNK_BYTES
    with (
        translate_errors(uri),
        open_object(uri, block_bytes) as source,
        path.open("wb") as copy,
    ):
        shutil.copyfileobj(source, copy, CHUNK_BYTES)


def write_prompt_list(job: Job, prompts: PromptList, folder: Path) -> SourceFile:
    """Write a prompt list to a Parquet file in `folder`. Raises TryAgain."""
    path = folder / "prompt-list.parquet"
    content, digest = _to_parquet(job, prompts)
    with translate_errors(str(path)):
        path.write_bytes(content)
    return SourceFile(LIST_SETTING, path, digest)


def store_prompt_list(job: Job, prompts: PromptList) -> Job:
    """Move the job's prompt list to a file under its output, to keep it out of the workflow.

    Raises BadInput, TryAgain.
    """
    content, digest = _to_parquet(job, prompts)
    store = open_store(job.output)
    key = prompt_list_key(digest)
    create_once(store, key, content)
    return job.model_copy(update={"prompts": store.uri_of(key)})


def _to_parquet(job: Job, prompts: PromptList) -> tuple[bytes, str]:
    texts = [*prompts.texts]
    table = pa.table({job.columns.prompt: texts})
    content = to_parquet(table)
    return content, hashlib.sha256(content).hexdigest()


def convert_sources(sources: tuple[SourceFile, ...], folder: Path) -> tuple[SourceFile, ...]:
    """Convert source files that are not Parquet to Parquet in `folder`.

    Empty text files are dropped, since Spark writes them for empty partitions. Raises BadInput,
    TryAgain.
    """
    kinds = {source.path: _detect_format(source) for source in sources}
    filled = [
        source
        for source in sources
        if kinds[source.path] not in TEXT_FORMATS or source.path.stat().st_size
    ]
    if not filled:
        raise BadInput(f"{sources[0].uri}: is empty. Check `prompts`.")

    columns = JsonColumns()  # shared, so that all JSON files have the same columns
    for source in filled:
        if kinds[source.path] == "json":
            columns.scan(source.path, source.uri)
    readers: dict[str, RowReader] = {
        "arrow": open_arrow,
        "json": columns.open,
        "txt": open_prompt_lines,
        **{name: partial(open_delimited, delimiter=mark) for name, mark in DELIMITERS.items()},
    }
    return tuple(
        _convert(source, readers[kinds[source.path]], folder / f"{number:05d}-converted.parquet")
        if kinds[source.path] in readers
        else source
        for number, source in enumerate(filled)
    )


def _detect_format(source: SourceFile) -> str:
    """Detect the format of a file, `parquet` by default. Raises BadInput, TryAgain."""
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


def _convert(source: SourceFile, read: RowReader, path: Path) -> SourceFile:
    with (
        translate_errors(str(path)),
        read(source.path, source.uri) as rows,
        pq.ParquetWriter(path, rows.schema) as writer,
    ):
        for batch in rows:
            writer.write_batch(batch)
    if source.path.parent == path.parent:  # a download, no longer needed
        source.path.unlink()
    return replace(source, path=path, has_lines=read is not open_arrow)


@contextmanager
def open_arrow(path: Path, where: str) -> Iterator[pa.RecordBatchReader]:
    """Open an Arrow IPC file or stream. Feather files of version 2 are IPC files."""
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
            # Validate offsets, which could point outside the data. Strings are viewed as bytes,
            # because invalid UTF-8 rejects only its own rows, later.
            kind = TEXT_AS_BYTES.get(column.type)
            if kind is not None:
                column = column.view(kind)
            column.validate(full=True)
        for first in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(first, BATCH_ROWS)
