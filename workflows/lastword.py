"""The last word of a pod: the sentence that Argo shows beside the exit code."""

from contextlib import suppress
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes' own name, there in pods only
MAX_MESSAGE_BYTES = 2000


def write_termination_message(sentence: str) -> None:
    """Say why the pod ends, where this is one."""
    if TERMINATION_LOG.is_file():
        with suppress(OSError):  # the sentence is in the log too
            TERMINATION_LOG.write_bytes(sentence.encode()[:MAX_MESSAGE_BYTES])
