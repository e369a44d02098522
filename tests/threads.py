"""The threads that run, to see which a test leaves behind."""

import threading


def threads() -> set[threading.Thread]:
    """Those that run now. Of those before a test some may end in it; none may be new but tqdm's, which stays."""
    return {each for each in threading.enumerate() if each.name != "tqdm_monitor"}
