"""Being asked to stop: a pod gets SIGTERM, then half a minute at most."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

GRACE_SECONDS = 15.0
AGAIN = b"Stopping after the part at hand. Ctrl-C again stops at once.\n"
COMMIT_SECONDS = 2.0  # kept back for encoding and writing the part


class Stopped(Exception):
    """Work was given up because the process was asked to stop."""


@dataclass(slots=True)
class Stop:
    """Whether and when the process was asked to stop."""

    asked_at: float | None = None

    def ask(self) -> None:
        """Stop as soon as the part at hand is done, or dropped."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()

    def check(self, seconds_needed: float = 0.0) -> None:
        """Raise Stopped where a stop was asked for and the time left is under `seconds_needed`."""
        if self.asked_at is not None and time.monotonic() + seconds_needed > self.asked_at + GRACE_SECONDS:
            raise Stopped


@contextmanager
def on_signals() -> Iterator[Stop]:
    """A Stop that SIGTERM and Ctrl-C ask for, while the block runs. A second Ctrl-C acts as it would have.

    A second SIGTERM does not: in a pod, the kubelet and Argo's executor may each send one.
    """
    stop = Stop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def asked(number: int, _frame: FrameType | None) -> None:
        stop.ask()
        if number == signal.SIGINT:
            os.write(2, AGAIN)  # print is not for signal handlers
            signal.signal(number, before[signal.SIGINT])

    for number in before:
        signal.signal(number, asked)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
