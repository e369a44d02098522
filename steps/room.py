"""So much memory for what several threads hold at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class ByteBudget:
    """A number of bytes that threads share. Who needs more than there is in all has it alone."""

    def __init__(self, size: int) -> None:
        """Begin with all of it free."""
        self._size = self._free = size
        self._changed = Condition()

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Hold so many bytes inside the block; waits until they are free."""
        held = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: held <= self._free)
            self._free -= held
        try:
            yield
        finally:
            with self._changed:
                self._free += held
                self._changed.notify_all()
