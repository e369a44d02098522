"""The files in a tar of ours, whoever wrote it.

Python's `tarfile` follows links within a tar, unpacks sparse files of any size, and takes as deep a
stack as there are nested headers. Our tars have none of these.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

NO_HEADER = bytes(tarfile.BLOCKSIZE)  # at the end of the archive


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file in a tar: its name, and where its header begins, its bytes, and the next header."""

    name: str
    start: int
    content: int
    size: int
    end: int


def iter_members(tar: bytes) -> Iterator[TarMember]:
    """The files in a tar, in order.

    Raises ValueError where it is cut off, or has a member that is no plain file.
    """
    start = 0
    while (header := tar[start : start + tarfile.BLOCKSIZE]) != NO_HEADER:
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ValueError(f"it is no whole tar: {error}") from error

        content = start + tarfile.BLOCKSIZE
        if info.type != tarfile.REGTYPE or not 0 <= info.size <= len(tar) - content:
            raise ValueError("it has a member that is no whole file")
        blocks = -(-info.size // tarfile.BLOCKSIZE)
        end = content + blocks * tarfile.BLOCKSIZE
        yield TarMember(info.name, start, content, info.size, end)
        start = end
