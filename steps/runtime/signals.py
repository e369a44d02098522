"""Requests to stop: a pod gets SIGTERM, and then has at most half a minute."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

GRACE_SECONDS = 15.0
COMMIT_RESERVE_SECONDS = 2.0  # set aside to encode and write the part
INTERRUPT_MESSAGE = b"Stopping after the current part. Ctrl-C again stops at once.\n"
ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGHUP})

_Handler = Callable[[int, FrameType | None], object] | int | None


class Stopped(BaseException):
    """Raised to stop on request. A BaseException, so that `except Exception` does not catch it."""


@dataclass(slots=True)
class Stop:
    """A request to stop the process.

    `immediate` is true if the signal itself raises Stopped, since no current work is worth
    finishing. `waits_for_part` is true if the current part is finished, however long that takes.
    `has_raised` is true once a signal has raised Stopped.
    """

    requested_at: float | None = None
    immediate: bool = False
    waits_for_part: bool = False
    has_raised: bool = False

    def request(self) -> None:
        """Stop as soon as the current part is finished or dropped."""
        if self.requested_at is None or self.waits_for_part:
            self.requested_at = time.monotonic()
            self.waits_for_part = False

    def request_after_part(self) -> None:
        """Stop once the current part is finished, unless a stop was already requested."""
        if self.requested_at is None:
            self.waits_for_part = True
            self.requested_at = time.monotonic()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay the stop until the end of the block, even if it is immediate."""
        before = self.immediate
        self.immediate = False
        try:
            yield
        finally:
            self.immediate = before

    def raise_if_due(self, seconds_needed: float = 0.0) -> None:
        """Raise Stopped after a request whose grace period ends within `seconds_needed`.

        Pass infinity before a new part.
        """
        if self.requested_at is None:
            return
        if self.waits_for_part and not math.isinf(seconds_needed):
            return
        if time.monotonic() + seconds_needed > self.requested_at + GRACE_SECONDS:
            raise Stopped


@contextmanager
def stop_on_signals(at_once: bool = False) -> Iterator[Stop]:
    """Yield a Stop requested by SIGTERM, SIGHUP or Ctrl-C. A second Ctrl-C raises Stopped.

    With `at_once`, the signal itself raises Stopped, unless a block is `deferred`. A second SIGTERM
    or SIGHUP has no effect, since the kubelet and Argo's executor may each send one. Neither has a
    signal after the block, which would change the exit code. SIGHUP stays ignored if it was, as
    with nohup.
    """
    stop = Stop(immediate=at_once)
    received: set[int] = set()
    before = _replaceable_handlers()
    after = dict(before)

    def handle(number: int, _frame: FrameType | None) -> None:
        is_repeated = number in received
        received.add(number)
        stop.request()
        if number in ENDING_SIGNALS:
            received.update(ENDING_SIGNALS)
            after.update(dict.fromkeys(ENDING_SIGNALS, signal.SIG_IGN))
            # Let the first signal's cleanup finish, such as removing files or recording statistics.
            if is_repeated:
                return
        if stop.immediate or is_repeated:
            stop.has_raised = True
            raise Stopped
        if number == signal.SIGINT:
            os.write(2, INTERRUPT_MESSAGE)  # print is unsafe in a signal handler

    _set_handlers(dict.fromkeys(before, handle))
    try:
        yield stop
    except Exception as error:
        if stop.has_raised:  # DuckDB and Arrow replace Stopped by their own errors
            raise Stopped from error
        raise
    finally:
        _set_handlers(after)


def _set_handlers(handlers: Mapping[signal.Signals, _Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _replaceable_handlers() -> dict[signal.Signals, _Handler]:
    handlers = {number: signal.getsignal(number) for number in (*ENDING_SIGNALS, signal.SIGINT)}
    if handlers[signal.SIGHUP] == signal.SIG_IGN:
        del handlers[signal.SIGHUP]
    return handlers
