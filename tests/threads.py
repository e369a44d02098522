"""Threads: which ones run, to see what a test leaves behind, and a machine that starts no more."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


def threads() -> set[threading.Thread]:
    """The threads that run now, without the monitor of tqdm, which lasts until the process ends."""
    return {thread for thread in threading.enumerate() if thread.name != "tqdm_monitor"}


def lasting_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    """The threads since `before` that do not end soon: a pool that was left ends its own."""
    for thread in threads() - before:
        thread.join(30)
    return threads() - before


@contextmanager
def no_more_threads() -> Iterator[None]:
    """Let nobody start a thread: each would need more memory than there are addresses."""
    before = threading.stack_size(2**47)
    try:
        yield
    finally:
        threading.stack_size(before)
