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
MAX_COUNT = 1 << 20  # of fields, of tensors, of items of an array, of bytes of a text
MAX_DIMENSIONS = 4
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
    if _read(file, len(MAGIC)) != MAGIC or _read_number(file, "I") not in VERSIONS:
        raise ValueError
    tensors, fields = _read_count(file), _read_count(file)
    for _ in range(fields):
        _read_text(file)
        _skip_value(file, _read_number(file, "I"))
    names = set()
    end = 0
    for _ in range(tensors):
        names.add(_read_text(file).decode())
        dimensions = _read_number(file, "I")
        if dimensions > MAX_DIMENSIONS:
            raise ValueError
        _read(file, 8 * dimensions + 4)  # with the type
        end = max(end, _read_number(file, "Q"))
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
        for _ in range(_read_count(file)):
            if kind == ARRAY:
                raise ValueError
            _skip_value(file, kind)


def _read_text(file: BinaryIO) -> bytes:
    return _read(file, _read_count(file))


def _read_count(file: BinaryIO) -> int:
    count = _read_number(file, "Q")
    if count > MAX_COUNT:
        raise ValueError
    return count


def _read_number(file: BinaryIO, code: str) -> int:
    (number,) = struct.unpack(f"<{code}", _read(file, struct.calcsize(f"<{code}")))
    return int(number)


def _read(file: BinaryIO, count: int) -> bytes:
    content = file.read(count)
    if len(content) != count or file.tell() > MAX_HEADER_BYTES:
        raise ValueError
    return content
