"""A file of WebDataset: a tar of samples, each an image, its row as JSON and its prompt as text."""

import io
import tarfile
from collections.abc import Sequence

import pyarrow as pa

from imagekiln.steps.runs.row_values import json_lines

END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)
MEMBER_MODE = 0o644


class TarFile:
    """A tar of samples. The same images give the same bytes."""

    def __init__(self) -> None:
        """Begin without images."""
        self._sink = io.BytesIO()

    def add(self, rows: pa.Table, contents: Sequence[bytes], suffixes: Sequence[str]) -> None:
        """Append images."""
        samples = zip(
            rows["image_id"].to_pylist(),
            suffixes,
            contents,
            json_lines(rows),
            rows["prompt"].to_pylist(),
            strict=True,
        )
        for image_id, suffix, content, line, prompt in samples:
            self._append(f"{image_id}{suffix}", content)  # readers expect it first
            self._append(f"{image_id}.json", line)
            self._append(f"{image_id}.txt", prompt.encode())

    def finish(self) -> bytes:
        """All bytes of the file."""
        self._sink.write(END_OF_ARCHIVE)
        return self._sink.getvalue()

    def _append(self, name: str, content: bytes) -> None:
        """Append a member, the same on every machine: it has neither a time nor an owner."""
        info = tarfile.TarInfo(name)
        info.size = len(content)
        info.mode = MEMBER_MODE
        self._sink.write(info.tobuf(tarfile.USTAR_FORMAT))
        self._sink.write(content)
        self._sink.write(bytes(-len(content) % tarfile.BLOCKSIZE))
