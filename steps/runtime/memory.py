"""How much memory there is."""

import os
from contextlib import suppress
from pathlib import Path

ALWAYS_FITS = 64 * 2**20
CGROUP_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """The memory of this machine, or the part of it that the pod may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file outside Linux, "max" without a limit
        memory = min(memory, int(CGROUP_MEMORY_LIMIT.read_text()))
    return memory


def require_memory_for(size: int) -> None:
    """Raise MemoryError where so many bytes never fit: the system may promise what it has not."""
    if size > ALWAYS_FITS and size > memory_bytes():
        raise MemoryError(f"{size} bytes")
