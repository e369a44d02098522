"""Threads: which ones run, to see what a test leaves behind, and a machine that starts no more."""

import threading


def threads() -> set[threading.Thread]:
    """The threads that run now, without the monitor of tqdm, which lasts until the process ends."""
    return {thread for thread in threading.enumerate() if thread.name != "tqdm_monitor"}


def lasting_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    """The threads since `before` that do not end soon: a pool that was left ends its own."""
    for thread in threads() - before:
        thread.join(30)
    return threads() - before
