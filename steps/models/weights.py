"""What is known of a weight file without loading it: its SHA-256, and the names of its tensors."""

import hashlib
from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError, safe_open

from imagekiln.steps.errors import BadInput


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, 64 hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensor_names(path: Path, setting: str) -> Collection[str]:
    """The names of the tensors in the safetensors file at `path`, read from its header.

    Raises BadInput where it is no whole safetensors file, OSError where it cannot be opened.
    """
    try:
        # Opened here first: the library reports any file that it cannot open as a missing one.
        with path.open("rb"), safe_open(path, framework="np") as file:
            return frozenset(file.keys())
    except SafetensorError as error:
        raise BadInput(
            f"{setting}: {path.name} is no whole safetensors file. Fetch it again."
        ) from error
