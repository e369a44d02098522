"""The header of a GGUF file, read without its package, which would trust the file's counts.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from pathlib import Path
from typing import BinaryIO

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage.local import open_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 16 << 20  # the package takes a hundred times as much memory for it
STRING, ARRAY = 8, 9
NUMBER_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # by type


def read_gguf_names(path: Path, setting: str) -> frozenset[str]:
    """Read the names of the tensors in the GGUF file at `path`.

    Raises BadInput if it is not a complete GGUF file, OSError if it cannot be opened.
    """
    try:
        with open_file(path) as file:
            return _read_names(file, path.stat().st_size)
    except (ValueError, KeyError) as error:
        raise BadInput(
            f"{setting}: {path.name} is not a complete GGUF file of version 2 or 3. Fetch it again."
        ) from error


def _read_names(file: BinaryIO, size: int) -> frozenset[str]:
    if _read(file, len(MAGIC)) != MAGIC:
        raise ValueError
    if _read_number(file, "I") not in VERSIONS:
        raise ValueError
    tensors = _read_number(file)
    fields = _read_number(file)
    for _ in range(fields):
        _read_text(file)
        _skip_value(file, _read_number(file, "I"))
    names = set()
    end = 0
    for _ in range(tensors):
        name = _read_text(file)
        names.add(name.decode())
        dimensions = _read_number(file, "I")
        _read(file, 8 * dimensions + 4)  # with the type
        end = max(end, _read_number(file))
    if file.tell() + end > size:
        raise ValueError
    return frozenset(names)


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == STRING:
        _read_text(file)
    elif kind != ARRAY:
        _read(file, NUMBER_BYTES[kind])
    else:
        kind = _read_number(file, "I")
        items = _read_number(file)
        if kind != STRING:
            _read(file, items * NUMBER_BYTES[kind])
        else:
            for _ in range(items):
                _read_text(file)


def _read_text(file: BinaryIO) -> bytes:
    return _read(file, _read_number(file))


def _read_number(file: BinaryIO, code: str = "Q") -> int:
    (number,) = struct.unpack(f"<{code}", _read(file, struct.calcsize(code)))
    return int(number)


def _read(file: BinaryIO, count: int) -> bytes:
    """Read so many bytes. Raises ValueError if the header is too long or ends before."""
    if file.tell() + count > MAX_HEADER_BYTES:
        raise ValueError
    content = file.read(count)
    if len(content) != count:
        raise ValueError
    return content
