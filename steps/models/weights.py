"""The names of the tensors in a safetensors file, by its header alone."""

import hashlib
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError, safe_open

from imagekiln.steps.errors import BadInput


def file_sha256(path: Path) -> str:
    """64 hexadecimal digits. Raises OSError."""
    now = path.stat()
    return _hash_file(path, now.st_ino, now.st_size, now.st_mtime_ns)


@lru_cache(maxsize=4096)
def _hash_file(path: Path, *_now: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path, setting: str) -> Collection[str]:
    """The names of the tensors in the file at `path`, without reading them.

    Raises BadInput where it is no whole safetensors file, OSError where it cannot be opened.
    """
    try:
        # Opened here first, since the library calls any file that it cannot open a missing one.
        with path.open("rb"), safe_open(path, framework="np") as file:
            return frozenset(file.keys())
    except SafetensorError as error:
        raise BadInput(
            f"{setting}: {path.name} is no whole safetensors file. Fetch it again."
        ) from error
