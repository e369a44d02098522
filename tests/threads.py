"""The running threads, to see which ones a test leaves behind."""

import threading


def threads() -> set[threading.Thread]:
    """The threads that run now, without the monitor of tqdm, which lasts until the process ends."""
    return {thread for thread in threading.enumerate() if thread.name != "tqdm_monitor"}
