"""SHA-256 and tensor names of weight files, without loading them."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open

from imagekiln.steps.errors import BadInput
from imagekiln.steps.models.gguf_header import read_gguf_names
from imagekiln.steps.storage.local import open_file

READER_THREADS = 4
# The GIL is taken once per piece, which takes 5 ms beside a thread that imports modules. Hashlib's
# own pieces of 256 KiB would be hashed at a tenth of the speed.
PIECE_BYTES = 32 << 20
BeforePiece = Callable[[], None]
Header = tuple[Collection[str], Mapping[str, str]]
GGUF_SUFFIX = ".gguf"
PICKLE_SUFFIXES = {".bin", ".ckpt", ".pt", ".pth", ".pkl"}
SAFETENSORS_SUFFIX = ".safetensors"


def proceed() -> None:
    """Do nothing: a `before_piece` that never cancels."""


def file_sha256(path: Path, before_piece: BeforePiece = proceed) -> str:
    """Compute the SHA-256 of a file's content, as 64 hexadecimal digits.

    `before_piece` is called before each piece, and may raise to cancel. Raises OSError.
    """
    digest = hashlib.sha256()
    for piece in iter_pieces(path, before_piece):
        digest.update(piece)
    return digest.hexdigest()


def hash_files(paths: Iterable[Path], before_piece: BeforePiece = proceed) -> list[str]:
    """Compute the SHA-256 of each file in parallel. Raises as `file_sha256`."""
    with ThreadPoolExecutor(READER_THREADS, "weights") as pool:
        return list(pool.map(partial(file_sha256, before_piece=before_piece), paths))


def iter_pieces(path: Path, before_piece: BeforePiece) -> Iterator[memoryview]:
    """Yield a file's content in pieces that share one buffer. Raises as `file_sha256`."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = memoryview(bytearray(max(1, min(size, PIECE_BYTES))))
        before_piece()
        while count := file.readinto(buffer):
            yield buffer[:count]
            before_piece()


def read_header(path: Path, setting: str) -> Header:
    """Read the names of the tensors in the safetensors or GGUF file at `path`, and its metadata.

    Raises BadInput if the file is incomplete or of another kind, OSError if it cannot be opened.
    """
    if path.suffix.lower() == GGUF_SUFFIX:
        return read_gguf_names(path, setting), {}
    try:
        # Opened here first, since the library reports any file that it cannot open as missing.
        with open_file(path), safe_open(path, framework="np") as file:
            return frozenset(file.keys()), dict(file.metadata() or {})
    except SafetensorError as error:
        raise BadInput(
            f"{setting}: {path.name} is not a complete safetensors file. Fetch it again."
        ) from error


def tensor_names(path: Path, setting: str) -> Collection[str]:
    """Read the names of the tensors in a safetensors file. Raises as `read_header`."""
    return read_header(path, setting)[0]


def is_weights_file(name: str) -> bool:
    """Return whether a model's name is the path of a weights file, by its suffix."""
    return Path(name).suffix.lower() in {SAFETENSORS_SUFFIX, GGUF_SUFFIX, *PICKLE_SUFFIXES}
