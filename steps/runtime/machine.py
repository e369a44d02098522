"""The CPUs and GPUs that the process may use, and what its libraries are told.

In a pod, it may use less than the node has.
"""

import logging
import math
import os
import re
import subprocess
import warnings
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
GPU_NAME = re.compile(r"\d+|(GPU|MIG)-.*")
MIG_PREFIX = "MIG-"
NVIDIA_SMI = ("nvidia-smi", "-L")
NVIDIA_SMI_SECONDS = 20  # that it may take: where no driver is at work yet, it starts one
DEVICES = Path("/dev")
NVIDIA_DEVICE_FILES = "nvidia[0-9]*"
TELEMETRY_VARIABLE = "HF_HUB_DISABLE_TELEMETRY"
VERBOSITY_VARIABLES = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")
GCSFS_DEBUG_VARIABLE = "GCSFS_DEBUG"
RENEWAL_LOGGERS = ("aiobotocore.credentials", "aiobotocore.tokens")
THREADS_VARIABLE = "OMP_NUM_THREADS"
WAIT_POLICY_VARIABLE = "OMP_WAIT_POLICY"
SPIN_VARIABLE = "GOMP_SPINCOUNT"  # of libgomp, which PyTorch has on Linux
BRIEF_SPIN_COUNT = "10000"  # libgomp's own is 300,000, about a millisecond


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
    if count and all(name.startswith(MIG_PREFIX) for name in names):
        return names
    return names[:count]


def find_nvidia_gpu(devices: Path = DEVICES) -> str | None:
    """The first NVIDIA GPU of this machine or container, even if CUDA finds none; None without one.

    By name, as nvidia-smi lists it; where that does not work, by the driver's device file.
    """
    with suppress(OSError, subprocess.SubprocessError):
        listing = subprocess.run(
            NVIDIA_SMI, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True
        )
        if listing.stdout.startswith("GPU "):
            return listing.stdout.splitlines()[0].partition(" (UUID")[0]
    return next(map(str, sorted(devices.glob(NVIDIA_DEVICE_FILES))), None)


def silence_libraries() -> None:
    """Suppress what libraries say of each other on import, unless the environment asks for it."""
    for name in VERBOSITY_VARIABLES:
        os.environ.setdefault(name, "error")
    os.environ.setdefault(TELEMETRY_VARIABLE, "1")  # the hub need not know what runs here
    # Deprecations inside diffusers: of Kolors, and of FLUX's ControlNets.
    warnings.filterwarnings(
        "ignore", "`(torch.jit.script|FluxPosEmbed)` is deprecated", FutureWarning
    )
    # Whatever asks first whether there is a GPU: the failure that is reported says what is wrong.
    warnings.filterwarnings("ignore", "CUDA initialization", UserWarning)
    # Of EXIF that is damaged, and of sizes: which images of the input are taken, we decide.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of what torchao calls
    if GCSFS_DEBUG_VARIABLE not in os.environ:
        # It logs the traceback of each failed request, which we explain in a sentence.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    for name in RENEWAL_LOGGERS:  # the same, of credentials that cannot be renewed
        logging.getLogger(name).setLevel(logging.CRITICAL)


def limit_spinning() -> None:
    """Let PyTorch's threads on the CPU spin only briefly while they wait for each other.

    Called before torch is imported. Threads that spin keep a busy machine from those that they wait
    for. What the user has set stays.
    """
    if WAIT_POLICY_VARIABLE not in os.environ:
        os.environ.setdefault(SPIN_VARIABLE, BRIEF_SPIN_COUNT)
