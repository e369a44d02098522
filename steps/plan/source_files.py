"""The files of prompts: found on disk or in a store, downloaded and hashed."""

import glob
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pyarrow as pa

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptList
from imagekiln.steps.runs.keys import prompt_list_key
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
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
# Folders also hold descriptions in these: they are data only in a folder without other data.
AMBIGUOUS_SUFFIXES = (".json", ".txt")
# A table of these is what its log says, not the files in its folder.
TABLE_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
LIST_SETTING = "prompts.texts"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file: the user's name for it, its path here and its content's hash.

    The path is that of a converted copy if `kind` is not `parquet`.
    """

    uri: str
    path: Path
    sha256: str
    kind: str = "parquet"

    @property
    def partitions(self) -> dict[str, str | None]:
        """The columns that folders named `column=value` in the file's name stand for."""
        pairs = {}
        for folder in PurePosixPath(self.uri).parts[:-1]:
            name, equals_sign, value = folder.partition("=")
            if equals_sign and name:
                pairs[unquote(name)] = None if value == NULL_PARTITION else unquote(value)
        return pairs


def suffix_of(uri: str) -> str:
    """The ending of a file's name in lower case, such as `.csv`."""
    name = uri.partition("?")[0] if is_web_uri(uri) else uri
    return PurePosixPath(name).suffix.lower()


def gather_sources(patterns: tuple[str, ...], folder: Path) -> tuple[SourceFile, ...]:
    """Every file that the patterns match, in the order of patterns and names.

    Remote files are downloaded to `folder`. Raises Missing, TryAgain.
    """
    sources: list[SourceFile] = []
    for pattern in patterns:
        uris = expand_pattern(pattern)
        if not uris:
            place = Path(resolve_path(pattern.removeprefix("file://"))).absolute()
            raise Missing(
                f"{pattern}: no such file as {place}. Check `prompts`: it is relative to the "
                "working directory, not to the job file."
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
    """The names that a pattern matches, sorted; of a folder, its files of data."""
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
    """The files that match, with None, and the folders, with the files in them."""
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
    """The files that match, with None, and the folders, with the files in them."""
    filesystem, path = open_filesystem(pattern)
    scheme = pattern.partition("://")[0]
    if not any(character in path for character in "*?["):
        try:
            kind = filesystem.info(path)["type"]
        except OSError:  # reading it says why
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
    """The files with rows among `names`; not those of hidden folders or `_SUCCESS`."""
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
    """Return whether a name is fetched over HTTP."""
    return uri.startswith(("http://", "https://"))


def _download(uri: str, path: Path) -> None:
    # Many web servers know no ranges, and do not say so: one request, for all of it.
    block_bytes = 0 if is_web_uri(uri) else CHUNK_BYTES
    with (
        translate_errors(uri),
        open_object(uri, block_bytes) as source,
        path.open("wb") as copy,
    ):
        shutil.copyfileobj(source, copy, CHUNK_BYTES)


def write_prompt_list(job: Job, prompts: PromptList, folder: Path) -> SourceFile:
    """Write the prompts as a file in `folder`. Raises TryAgain."""
    path = folder / "prompt-list.parquet"
    content, digest = _to_parquet(job, prompts)
    with translate_errors(str(path)):
        path.write_bytes(content)
    return SourceFile(LIST_SETTING, path, digest)


def store_prompt_list(job: Job, prompts: PromptList) -> Job:
    """Move the job's own prompts into a file under its output: workflows contain none.

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
