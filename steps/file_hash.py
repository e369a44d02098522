"""The hash of a file's content, taken once while the file stays as it is: a command asks for weights more than once."""

import hashlib
from functools import lru_cache
from pathlib import Path


def file_sha256(path: Path) -> str:
    """64 hexadecimal digits. Raises OSError."""
    now = path.stat()
    return _hash_file(path, now.st_ino, now.st_size, now.st_mtime_ns)


@lru_cache(maxsize=4096)
def _hash_file(path: Path, *_now: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
