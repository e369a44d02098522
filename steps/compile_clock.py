"""The time that PyTorch spends compiling, as it tells it itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch._dynamo.callback import CallbackArgs, callback_handler


@dataclass(slots=True)
class CompileClock:
    """How often something was compiled while the clock ran, and the seconds that it took. A steady call has none."""

    count: int = 0
    seconds: float = 0.0
    _since: float = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count what this process compiles while the block runs. What is compiled within that counts once."""
        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)
        try:
            yield
        finally:
            callback_handler.remove_start_callback(self._start)
            callback_handler.remove_end_callback(self._end)

    def _start(self, _: CallbackArgs) -> None:
        self.count, self._since = self.count + 1, time.perf_counter()

    def _end(self, _: CallbackArgs) -> None:
        self.seconds += time.perf_counter() - self._since
