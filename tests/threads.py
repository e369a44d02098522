"""The threads that run, to see which a test leaves behind."""

import threading


def threads() -> set[threading.Thread]:
    """The threads that run now, without the monitor of tqdm, which lasts until the process ends."""
    return {each for each in threading.enumerate() if each.name != "tqdm_monitor"}
