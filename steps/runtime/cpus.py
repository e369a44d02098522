"""How many CPUs this process may use, which in a pod are fewer than the node has."""

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
QUOTA_FILES = ("cpu.max", "cpu/cpu.cfs_quota_us")  # of version 2, which has the period too, and 1
PERIOD_FILE = "cpu/cpu.cfs_period_us"


def available_cpus(cgroup: Path = CGROUP) -> int:
    """The CPUs of the process's affinity, or fewer where its cgroup limits their time.

    Of a pod, the CPU limit counts, not the request: a pod may use what its node has to spare.
    """
    cpus = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cpus = len(os.sched_getaffinity(0))
    limit = _cgroup_limit(cgroup)
    return cpus if limit is None else max(1, min(cpus, math.ceil(limit)))


def _cgroup_limit(cgroup: Path) -> float | None:
    """How many CPUs' time the cgroup may use; None where it has no limit, or cannot be read."""
    for name in QUOTA_FILES:
        with suppress(OSError, ValueError):  # "max" and -1 stand for no limit
            quota, *period = (cgroup / name).read_text(encoding="ascii").split()
            if not period:
                period = [(cgroup / PERIOD_FILE).read_text(encoding="ascii")]
            limit = int(quota) / int(period[0])
            return limit if limit > 0 else None
    return None
