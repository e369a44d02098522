"""The process: its CPUs and GPUs, the settings of its libraries, and its log lines.

In a pod, the process may use less than the node has. Our pod template sets IMAGEKILN_LOG=json, so
each log line is a JSON object with the run, the shard and the number of the attempt.
"""

import json
import logging
import math
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
GPU_NAME = re.compile(r"\d+|(GPU|MIG)-.*")
DEVICES = Path("/dev")
THREADS_VARIABLE = "OMP_NUM_THREADS"
SPIN_VARIABLE = "GOMP_SPINCOUNT"  # for libgomp, which PyTorch bundles on Linux
BRIEF_SPIN_COUNT = "10000"  # the default is 300,000, about a millisecond
LOG_VARIABLE = "IMAGEKILN_LOG"
ATTEMPT_VARIABLE = "IMAGEKILN_ATTEMPT"
START_TIME_FIELD = 22  # in /proc/self/stat, in clock ticks since boot


def available_cpus(cgroup: Path = CGROUP) -> int:
    """Return the number of CPUs that the process's affinity and cgroup allow.

    In a pod, this is the CPU limit and not the request, since a pod may use spare CPUs of its node.
    """
    cpus = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cpus = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no such file outside Linux, "max" without a limit
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cpus, math.ceil(int(quota) / int(period))))
    return cpus


def process_age() -> float:
    """Return the seconds since this process started; 0 without /proc."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        content = Path("/proc/self/stat").read_text()
        # The program's name comes second, in parentheses, and may contain any character.
        _, _, after_name = content.rpartition(")")
        ticks = int(after_name.split()[START_TIME_FIELD - 3])
        started = ticks / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    return 0.0


def visible_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """Return the GPUs that a process with this environment may use.

    `count` is the number of GPUs that CUDA finds. CUDA ignores all names after the first unknown
    one. A process sees only the first of several MIG slices, but each process may get another one.
    """
    value = environment.get(VISIBLE_DEVICES_VARIABLE)
    if value is None:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in value.split(",") if name.strip()]
    names = list(takewhile(GPU_NAME.fullmatch, names))  # -1 and none are not GPU names
    if count and all(name.startswith("MIG-") for name in names):
        return names
    return names[:count]


def find_nvidia_gpu(devices: Path = DEVICES) -> str | None:
    """Return the device file of the first NVIDIA GPU, even if CUDA finds none; None without one."""
    return next(map(str, sorted(devices.glob("nvidia[0-9]*"))), None)


def silence_libraries() -> None:
    """Suppress messages of libraries about each other, unless the environment requests them."""
    for name in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(name, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Show its waits for a lock, which never end if the owner was killed on another host.
    logging.getLogger("huggingface_hub.utils._fixes").setLevel(logging.INFO)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # the hub need not know what runs here
    # Deprecations inside diffusers, for Kolors and for FLUX's ControlNets.
    warnings.filterwarnings(
        "ignore", "`(torch.jit.script|FluxPosEmbed)` is deprecated", FutureWarning
    )
    # The error that we report explains the problem with the GPU.
    warnings.filterwarnings("ignore", "CUDA initialization", UserWarning)
    # Damaged EXIF and large sizes: planning checks input images itself.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # about calls of torchao
    if "GCSFS_DEBUG" not in os.environ:
        # It logs the traceback of each failed request, which our message explains.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    # Likewise for credentials that cannot be renewed.
    for name in ("aiobotocore.credentials", "aiobotocore.tokens"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def limit_spinning() -> None:
    """Limit the time that PyTorch's CPU threads spin while they wait for each other.

    Must be called before torch is imported. On a busy machine, spinning threads delay the threads
    that they wait for. Settings of the user take precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(SPIN_VARIABLE, BRIEF_SPIN_COUNT)


# Shared by all threads of the process.
_context: dict[str, object] = {}


@contextmanager
def empty_log_context() -> Iterator[None]:
    """Clear the fields shared by log lines at the end of the block."""
    try:
        yield
    finally:
        _context.clear()


def add_log_context(step: str, run: str | None = None, shard: int | None = None) -> None:
    """Add the step, the shard and the run's URI, if known, to all later log lines."""
    _context["step"] = step
    if run is not None:
        _context["run"] = run
    if shard is not None:
        _context["shard"] = shard


def is_log_structured(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether all output has to be lines of JSON."""
    return environment.get(LOG_VARIABLE) == "json"


def format_log_event(name: str, fields: Mapping[str, object]) -> str:
    """Format an event with its fields and the shared fields as one log line."""
    line: dict[str, object] = {"event": name, **fields, **_context}
    attempt = os.environ.get(ATTEMPT_VARIABLE, "")
    if attempt.isdecimal():
        line["attempt"] = int(attempt)
    return json.dumps(line)
