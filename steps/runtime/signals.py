"""Being asked to stop: a pod gets SIGTERM, then half a minute at most."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

GRACE_SECONDS = 15.0
INTERRUPT_MESSAGE = b"Stopping after the part at hand. Ctrl-C again stops at once.\n"
COMMIT_RESERVE_SECONDS = 2.0  # kept back for encoding and writing the part


class Stopped(BaseException):
    """Work was given up because the process was asked to stop. No `except Exception` takes it for a failure."""


@dataclass(slots=True)
class Stop:
    """Whether and when the process was asked to stop. `at_once`: nothing at hand is worth finishing."""

    requested_at: float | None = None
    immediate: bool = False

    def request(self) -> None:
        """Stop as soon as the part at hand is done, or dropped."""
        if self.requested_at is None:
            self.requested_at = time.monotonic()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """While the block runs, what is at hand is worth finishing."""
        before, self.immediate = self.immediate, False
        try:
            yield
        finally:
            self.immediate = before

    def raise_if_due(self, seconds_needed: float = 0.0) -> None:
        """Raise Stopped where a stop was asked for and the time left is under `seconds_needed`."""
        if (
            self.requested_at is not None
            and time.monotonic() + seconds_needed > self.requested_at + GRACE_SECONDS
        ):
            raise Stopped


@contextmanager
def stop_on_signals(at_once: bool = False) -> Iterator[Stop]:
    """A Stop that SIGTERM and Ctrl-C ask for, while the block runs. A second Ctrl-C acts as it would have.

    With `at_once`, the signal itself raises Stopped, but for where a block is `finishing`. A second SIGTERM changes
    nothing: in a pod, the kubelet and Argo's executor may each send one. It does not even after the block, where it
    would spoil the exit code of a process that is about to end.
    """
    stop = Stop(immediate=at_once)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    after = dict(before)

    def asked(number: int, _frame: FrameType | None) -> None:
        stop.request()
        if number == signal.SIGTERM:
            after[signal.SIGTERM] = signal.SIG_IGN
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])
        if stop.immediate:
            raise Stopped
        if number == signal.SIGINT:
            os.write(2, INTERRUPT_MESSAGE)  # print is not for signal handlers

    for number in before:
        signal.signal(number, asked)
    try:
        yield stop
    finally:
        for number, handler in after.items():
            signal.signal(number, handler)
