"""What is in a safetensors file by its header, without the library: planning has none."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from imagekiln.steps.errors import BadInput

LENGTH_BYTES = 8  # a safetensors file begins with its header's length, in 64 bits, lowest first
MOST_HEADER_BYTES = 100_000_000  # https://github.com/huggingface/safetensors: the format's own limit


def read(file: BinaryIO, path: Path, setting: str) -> Collection[str]:
    """The names of the tensors in the file at `path`, read up to the end of its header.

    Raises BadInput where it is no whole safetensors file.
    """
    size = path.stat().st_size
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if not 0 < length <= min(MOST_HEADER_BYTES, size - LENGTH_BYTES):
        raise BadInput(f"{setting}: {path.name} is no whole safetensors file. Fetch it again.")
    found = _ends(file.read(length), path, setting)
    if max(found.values(), default=0) != size - LENGTH_BYTES - length:
        raise BadInput(f"{setting}: {path.name} is no whole safetensors file. Fetch it again.")
    return found.keys()


def _ends(header: bytes, path: Path, setting: str) -> dict[str, int]:
    """Where each tensor ends, in bytes after the header. The last one ends with the file."""
    try:
        described = json.loads(header)
        ends = {name: each["data_offsets"][1] for name, each in described.items() if name != "__metadata__"}
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError) as error:
        raise BadInput(f"{setting}: {path.name} is no safetensors file. Fetch it again.") from error
    if not all(isinstance(end, int) for end in ends.values()):
        raise BadInput(f"{setting}: {path.name} is no safetensors file. Fetch it again.")
    return ends
