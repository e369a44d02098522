"""The files of prompts: found on disk or in a store, downloaded and hashed."""

import glob
import hashlib
from collections.abc import Collection, Iterable
from contextlib import suppress
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
            raise Missing(f"{pattern}: {_describe_absence(pattern)}")
        for uri in uris:
            if is_remote_uri(pattern):
                sources += _download_all(uri, folder, len(sources))
            else:
                sources.append(_hash_file(uri))
    return tuple(sources)


def expand_pattern(pattern: str) -> list[str]:
    """The names that a pattern matches, sorted; of a folder, its files of data.

    A remote name that ends as a file of data does is not looked up.
    """
    return _expand_remote(pattern) if is_remote_uri(pattern) else _expand_local(pattern)


def _expand_local(pattern: str) -> list[str]:
    path = resolve_path(pattern.removeprefix("file://"))
    names: set[str] = set()
    with translate_errors(pattern):
        found = [path] if Path(path).exists() else glob.glob(path, recursive=True)
        for name in found:
            place = Path(name)
            if place.is_dir():
                files = (str(file) for file in place.rglob("*") if file.is_file())
                names.update(_choose_data_files(files, str(place), pattern))
            else:
                names.add(name)
        if Path(path).is_dir():
            _refuse_folder_without_data(names, pattern)
    return sorted(names)


def _describe_absence(pattern: str) -> str:
    if is_remote_uri(pattern):
        return "no such file or bucket. Check `prompts`."
    if " " in pattern and not {"/", "*"} & {*pattern} and not suffix_of(pattern):
        return (
            "no such file. If it is a prompt, write `prompts: {texts: [...]}`, in Python "
            'prompts={"texts": [...]}.'
        )
    path = resolve_path(pattern.removeprefix("file://"))
    return (
        f"no such file as {Path(path).absolute()}. Check `prompts`: "
        "it is relative to the working directory, not to the job file."
    )


def _choose_data_files(names: Iterable[str], folder: str, pattern: str) -> list[str]:
    """The files with rows among `names`, sorted; not those of hidden folders or `_SUCCESS`."""
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
    certain = [name for name in chosen if suffix_of(name) not in AMBIGUOUS_SUFFIXES]
    return sorted(certain or chosen)


def _refuse_folder_without_data(names: Collection[str], pattern: str) -> None:
    if not names:
        raise BadInput(
            f"{pattern}: is a folder without files of prompts, whose names end in "
            f"{', '.join(DATA_SUFFIXES)}. Check `prompts`."
        )


def _expand_remote(pattern: str) -> list[str]:
    filesystem, path = open_filesystem(pattern)
    if is_web_uri(pattern):
        if pattern.endswith("/") or "*" in pattern.partition("?")[0]:
            raise BadInput(f"{pattern}: folders cannot be listed over HTTP. Name each file.")
        return [pattern]
    with translate_errors(pattern):
        if any(character in path for character in "*?["):
            return _match_remote(pattern)
        is_folder = pattern.endswith("/")
        if not is_folder and suffix_of(pattern) not in DATA_SUFFIXES:
            is_folder = filesystem.isdir(path)
    if not is_folder:
        return [pattern]
    names = _list_remote_folder(pattern)
    _refuse_folder_without_data(names, pattern)
    return names


def _match_remote(pattern: str) -> list[str]:
    filesystem, path = open_filesystem(pattern)
    names: set[str] = set()
    for name, entry in filesystem.glob(path, detail=True).items():
        if entry["type"] == "directory":
            names.update(_choose_data_files(filesystem.find(name), name, pattern))
        else:
            names.add(name)
    return [_uri_of(name, pattern) for name in sorted(names)]


def _list_remote_folder(pattern: str) -> list[str]:
    filesystem, path = open_filesystem(pattern)
    folder = path.rstrip("/")
    with translate_errors(pattern):
        names = _choose_data_files(filesystem.find(folder), folder, pattern)
    return [_uri_of(name, pattern) for name in names]


def _uri_of(name: str, pattern: str) -> str:
    return f"{pattern.partition('://')[0]}://{name}"


def is_web_uri(uri: str) -> bool:
    """Return whether a name is fetched over HTTP."""
    return uri.startswith(("http://", "https://"))


def _hash_file(path: str) -> SourceFile:
    digest = hashlib.sha256()
    with translate_errors(path), open_file(Path(path)) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return SourceFile(path, Path(path), digest.hexdigest())


def _download_all(uri: str, folder: Path, number: int) -> list[SourceFile]:
    """Download a file, or the files of a folder that is named like one, as Spark's are."""
    with suppress(Missing):
        source = _download(uri, folder / f"{number:05d}.download")
        if source.path.stat().st_size:
            return [source]
    # s3fs opens what is only the beginning of names as a file without a byte.
    names = [] if is_web_uri(uri) else _list_remote_folder(uri)
    return [
        _download(name, folder / f"{place:05d}.download")
        for place, name in enumerate(names or [uri], start=number)
    ]


def _download(uri: str, path: Path) -> SourceFile:
    # Many web servers know no ranges, and do not say so: one request, for all of it.
    block_bytes = 0 if is_web_uri(uri) else CHUNK_BYTES
    digest = hashlib.sha256()
    with (
        translate_errors(uri),
        open_object(uri, block_bytes) as source,
        path.open("wb") as copy,
    ):
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    return SourceFile(uri, path, digest.hexdigest())


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
