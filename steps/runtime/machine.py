"""The process: its CPUs and GPUs, settings of its libraries, and the lines of its log.

In a pod, it may use less than the node has. There, the template sets IMAGEKILN_LOG=json: each line
of the log is then a JSON object with the run, the shard and the number of the attempt.
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
SPIN_VARIABLE = "GOMP_SPINCOUNT"  # of libgomp, which PyTorch has on Linux
BRIEF_SPIN_COUNT = "10000"  # libgomp's own is 300,000, about a millisecond
LOG_VARIABLE = "IMAGEKILN_LOG"
ATTEMPT_VARIABLE = "IMAGEKILN_ATTEMPT"
START_TIME_FIELD = 22  # of /proc/self/stat, in clock ticks since the machine started


def available_cpus(cgroup: Path = CGROUP) -> int:
    """The CPUs of the process's affinity, or fewer if its cgroup limits their time.

    Of a pod, the CPU limit counts, not the request: a pod may use what its node has to spare.
    """
    cpus = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cpus = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no such file outside Linux, "max" without a limit
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cpus, math.ceil(int(quota) / int(period))))
    return cpus


def process_age() -> float:
    """Seconds since this process started; 0 without /proc."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        content = Path("/proc/self/stat").read_text()
        # The name of the program comes second, in parentheses, and may hold anything.
        _, _, after_name = content.rpartition(")")
        ticks = int(after_name.split()[START_TIME_FIELD - 3])
        started = ticks / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    return 0.0


def visible_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """The names of the GPUs that a process with this environment may use.

    `count` is how many CUDA finds. CUDA ignores names after the first that it does not know. Of
    several MIG slices a process sees only the first, but each may go to a process of its own.
    """
    value = environment.get(VISIBLE_DEVICES_VARIABLE)
    if value is None:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in value.split(",") if name.strip()]
    names = list(takewhile(GPU_NAME.fullmatch, names))  # -1 and none are no names
    if count and all(name.startswith("MIG-") for name in names):
        return names
    return names[:count]


def find_nvidia_gpu(devices: Path = DEVICES) -> str | None:
    """The driver's file of the first NVIDIA GPU here, even if CUDA finds none; None without one."""
    return next(map(str, sorted(devices.glob("nvidia[0-9]*"))), None)


def silence_libraries() -> None:
    """Suppress messages of libraries about each other, unless the environment asks for them."""
    for name in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(name, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # It waits for a lock without end, even if the process that had it was killed on another host.
    logging.getLogger("huggingface_hub.utils._fixes").setLevel(logging.INFO)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # the hub need not know what runs here
    # Deprecations inside diffusers: of Kolors, and of FLUX's ControlNets.
    warnings.filterwarnings(
        "ignore", "`(torch.jit.script|FluxPosEmbed)` is deprecated", FutureWarning
    )
    # The failure that is reported says what is wrong with the GPU.
    warnings.filterwarnings("ignore", "CUDA initialization", UserWarning)
    # Of damaged EXIF and of sizes: planning checks input images itself.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of what torchao calls
    if "GCSFS_DEBUG" not in os.environ:
        # It logs the traceback of each failed request, which we explain in a sentence.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    # The same, of credentials that cannot be renewed.
    for name in ("aiobotocore.credentials", "aiobotocore.tokens"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def limit_spinning() -> None:
    """Let PyTorch's threads on the CPU spin only briefly while they wait for each other.

    Called before torch is imported. Threads that spin keep a busy machine from those that they wait
    for. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(SPIN_VARIABLE, BRIEF_SPIN_COUNT)


# Of the whole process: threads write lines too.
_context: dict[str, object] = {}


@contextmanager
def empty_log_context() -> Iterator[None]:
    """Forget at the end of the block what its lines had in common."""
    try:
        yield
    finally:
        _context.clear()


def add_log_context(step: str, run: str | None = None, shard: int | None = None) -> None:
    """Give every later line the step, the run by its URI if there is one yet, and the shard."""
    _context["step"] = step
    if run is not None:
        _context["run"] = run
    if shard is not None:
        _context["shard"] = shard


def is_log_structured(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether everything that is printed has to be a line of JSON."""
    return environment.get(LOG_VARIABLE) == "json"


def format_log_event(name: str, fields: Mapping[str, object]) -> str:
    """One line: the event, its fields, and what all lines have in common."""
    line: dict[str, object] = {"event": name, **fields, **_context}
    attempt = os.environ.get(ATTEMPT_VARIABLE, "")
    if attempt.isdecimal():
        line["attempt"] = int(attempt)
    return json.dumps(line)
