"""The time that PyTorch spends compiling, as it tells it itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch._dynamo.callback import CallbackArgs, callback_handler


@dataclass(slots=True)
class Clock:
    """How often something was compiled, and the seconds that it took. What is compiled within it is not counted."""

    count: int = 0
    seconds: float = 0.0
    _since: float = 0.0

    def start(self, _: CallbackArgs) -> None:
        """Compiling begins."""
        self.count, self._since = self.count + 1, time.perf_counter()

    def end(self, _: CallbackArgs) -> None:
        """Compiling ends, well or not."""
        self.seconds += time.perf_counter() - self._since


@contextmanager
def clocked() -> Iterator[Clock]:
    """The compiling done in this process while the block runs. A steady call has none of it."""
    clock = Clock()
    callback_handler.register_start_callback(clock.start)
    callback_handler.register_end_callback(clock.end)
    try:
        yield clock
    finally:
        callback_handler.remove_start_callback(clock.start)
        callback_handler.remove_end_callback(clock.end)
