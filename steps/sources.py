"""The input files: found, brought onto this disk where they are elsewhere, and fingerprinted."""

import glob
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from imagekiln.steps import bundled
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.remote import is_remote
from imagekiln.steps.storage import filesystem
from imagekiln.steps.store_errors import told

CHUNK = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """One input file: the name the user knows, where it lies on this disk, and its content's hash."""

    uri: str
    path: Path
    sha256: str


def gather(patterns: tuple[str, ...], spool: Path) -> tuple[Source, ...]:
    """Every file that the patterns name, in the order of pattern and name.

    Files from elsewhere are copied to `spool`, so that what is hashed is what is read.
    Raises Missing where a pattern names nothing, TryAgain where storage fails.
    """
    sources: list[Source] = []
    for pattern in patterns:
        remote, found = is_remote(pattern), find(pattern)
        if not found:
            raise Missing(f"{pattern}: no such file or bucket. Check `prompts`.")
        for uri in found:
            number = len(sources)
            sources.append(_fetched(uri, spool / f"{number:05d}.parquet") if remote else _hashed(uri))
    return tuple(sources)


def find(pattern: str) -> list[str]:
    """The names that a pattern stands for, sorted. One that is elsewhere and has no `*` is not looked up."""
    return _find_remote(pattern) if is_remote(pattern) else _find_local(pattern)


def fingerprint(sources: tuple[Source, ...]) -> str:
    """One hash for the whole input: its files' contents in order, whatever the files are called."""
    return hashlib.sha256("".join(source.sha256 for source in sources).encode()).hexdigest()


def _find_local(pattern: str) -> list[str]:
    path = bundled.local(pattern.removeprefix("file://"))
    with told(pattern):
        if Path(path).is_dir():
            raise BadInput(f"{pattern}: is a folder. Write {path.rstrip('/')}/*.parquet.")
        found = [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True))
    for name in found:
        if not name.isprintable():
            raise BadInput(f"{pattern}: finds a file with an unprintable name, {name!a}. Rename it.")
    return found


def _find_remote(pattern: str) -> list[str]:
    files, path = filesystem(pattern)
    protocol = pattern.partition("://")[0]
    with told(pattern):
        if not any(sign in path for sign in "*?["):
            return [pattern]
        return [f"{protocol}://{name}" for name in sorted(files.glob(path))]


def _hashed(path: str) -> Source:
    digest = hashlib.sha256()
    with told(path), Path(path).open("rb") as file:
        for chunk in _chunks(file):
            digest.update(chunk)
    return Source(path, Path(path), digest.hexdigest())


def _fetched(uri: str, copy: Path) -> Source:
    files, path = filesystem(uri)
    digest = hashlib.sha256()
    with told(uri), files.open(path, "rb", block_size=CHUNK) as file, copy.open("wb") as out:
        for chunk in _chunks(file):
            digest.update(chunk)
            out.write(chunk)
    return Source(uri, copy, digest.hexdigest())


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
