"""The input files: found, brought onto this disk where they are elsewhere, and fingerprinted."""

import glob
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from imagekiln.steps import bundled
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.remote import is_remote_uri
from imagekiln.steps.storage import open_filesystem
from imagekiln.steps.store_errors import translate_errors

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
            sources.append(_download(uri, spool / f"{number:05d}.parquet") if remote else _hash_file(uri))
    return tuple(sources)


def expand_pattern(pattern: str) -> list[str]:
    """The names that a pattern stands for, sorted. One that is elsewhere and has no `*` is not looked up."""
    return _expand_remote(pattern) if is_remote_uri(pattern) else _expand_local(pattern)


def input_fingerprint(sources: tuple[SourceFile, ...]) -> str:
    """One hash for the whole input: its files' contents in order, whatever the files are called."""
    return hashlib.sha256("".join(source.sha256 for source in sources).encode()).hexdigest()


def _expand_local(pattern: str) -> list[str]:
    path = bundled.resolve_path(pattern.removeprefix("file://"))
    with translate_errors(pattern):
        if Path(path).is_dir():
            raise BadInput(f"{pattern}: is a folder. Write {path.rstrip('/')}/*.parquet.")
        found = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))
    for name in found:
        if not name.isprintable():
            raise BadInput(f"{pattern}: finds a file with an unprintable name, {name!a}. Rename it.")
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
    with translate_errors(uri), files.open(path, "rb", block_size=CHUNK_BYTES) as file, copy.open("wb") as out:
        for chunk in _read_chunks(file):
            digest.update(chunk)
            out.write(chunk)
    return SourceFile(uri, copy, digest.hexdigest())


def _read_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
