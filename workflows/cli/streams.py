"""Standard streams that are closed, full or no longer read: they decide no command's result."""

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STREAMS = (0, 1, 2)


class OutputLost(Exception):  # not a failure of what the command did
    """The result could not be printed."""

    def __init__(self, error: OSError) -> None:
        """Take the system's error."""
        super().__init__(
            f"standard output: cannot be written ({error.strerror}). Run the command again."
        )
        self.is_unread = error.errno == errno.EPIPE  # such as `| head -1`, which has read enough


class ResultFile(io.FileIO):
    """Standard output. Where it cannot be written, OutputLost is raised once, and the rest lost."""

    def __init__(self, descriptor: int) -> None:
        """Leave the descriptor open at the end."""
        super().__init__(descriptor, "w", closefd=False)
        self._is_lost = False

    def write(self, data: "ReadableBuffer", /) -> int | None:  # type: ignore[override]  # as io has it
        """Write what the system takes of it."""
        if self._is_lost:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self._is_lost = True  # what is still buffered is flushed when the process ends
            raise OutputLost(error) from error


class NoteFile(io.FileIO):
    """Standard error. What cannot be written is lost: it is no reason to end the work."""

    def __init__(self, descriptor: int) -> None:
        """Leave the descriptor open at the end."""
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: "ReadableBuffer", /) -> int | None:  # type: ignore[override]  # as io has it
        """Write what the system takes of it."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def secure_streams() -> None:
    """Replace sys.stdout and sys.stderr, and have descriptors 0 to 2 open.

    The next files to be opened would get those that are closed, and what a library writes to
    standard error would go into them.
    """
    for descriptor in STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            os.set_inheritable(descriptor, True)
    sys.stdout = _open_text(ResultFile(1), sys.stdout)
    sys.stderr = _open_text(NoteFile(2), sys.stderr)


def _open_text(file: io.FileIO, before: object) -> io.TextIOWrapper:
    """A stream in place of Python's own, which is None where the descriptor was closed.

    It keeps what PYTHONIOENCODING and PYTHONUNBUFFERED have said.
    """
    encoding, is_unbuffered = None, False
    if isinstance(before, io.TextIOWrapper):
        encoding, is_unbuffered = before.encoding, before.write_through
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=encoding,
        errors="backslashreplace",  # of characters that the encoding does not have
        line_buffering=is_unbuffered or file.isatty() or isinstance(file, NoteFile),
    )
