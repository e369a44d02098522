"""The device that was asked for and no other, its clock, its memory and its failures."""

import gc
import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Protocol

import torch

from imagekiln.steps.errors import (
    BadInput,
    KilnError,
    TryAgain,
    explained_by,
    first_line,
)
from imagekiln.steps.generate.diffusion.patches import keep_shared_tensors
from imagekiln.steps.runtime.machine import visible_gpus
from imagekiln.steps.runtime.metrics import DEVICE_MEMORY_BYTES
from imagekiln.steps.storage.failures import error_reason

# What libraries without an error class for it say: CUDA and MPS; PyTorch's allocator on the CPU;
# cuBLAS, also where it finds no room for its handle; and cuDNN, where a convolution finds none for
# its workspace.
OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "unable to find an engine to execute",
)
RUN_SHARD_AGAIN = "Run the shard again."
NODE_VARIABLE = "IMAGEKILN_NODE"  # the name of the Kubernetes node, in pods that have a GPU
OLD_DRIVER_MESSAGE = "is too old"  # of PyTorch, which has one error class for all that CUDA lacks
BUILD_REMEDIES = {
    "cuda": "Install a PyTorch with CUDA, or use the GPU image.",
    "mps": "Install PyTorch for macOS on a Mac with Apple silicon.",
}
# `sm_90` runs on GPUs of 9.0 and later 9.x, `compute_90` on all of 9.0 and later, and what ends in
# "a" on no other.
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def choose_device(name: str) -> torch.device:
    """The device of the job's `device`; `auto` takes the best one.

    Raises TryAgain where it is missing or does not answer, BadInput where this PyTorch can never
    use it.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind, is_available in available.items() if is_available)
    if not available[name]:
        raise _missing_device(name)

    device = torch.device(name)
    if device.type == "cuda":
        _require_kernels(device)
    return device


def count_gpus() -> int:
    """How many GPUs CUDA finds in the environment of this process; none where it does not work."""
    return torch.cuda.device_count()


def _missing_device(name: str) -> KilnError:
    """The failure to report for a device that is not available, with the reason that CUDA gives."""
    if not _is_built_for(name):
        return BadInput(
            f"device {name!r} cannot be used{_on_node()}: this PyTorch ({torch.__version__}) is "
            f"built without it. {BUILD_REMEDIES[name]} Or set device: auto."
        )
    reason = _cuda_failure() if name == "cuda" else ""
    if OLD_DRIVER_MESSAGE in reason:
        return BadInput(
            f"the GPU's driver{_on_node()} is too old for this PyTorch, which is built for CUDA "
            f"{torch.version.cuda}: {reason} Update the driver (CUDA 13 needs 580 or later) or run "
            "on nodes that have it. Data-center GPUs with driver 535, 550 or 570 need an image "
            "with NVIDIA's compatibility libraries: docs/gpus.md."
        )
    explanation = f" ({reason.rstrip('.')})" if reason else ""
    return TryAgain(
        f"device {name!r} is not there{_on_node()}{explanation}. Run where it is, or set device: "
        f"auto.{_node_advice()}"
    )


def _is_built_for(name: str) -> bool:
    """Whether this PyTorch has code for a kind of device. ROCm's goes by the name of CUDA."""
    if name == "mps":
        return torch.backends.mps.is_built()
    return torch.version.cuda is not None or torch.version.hip is not None


def _cuda_failure() -> str:
    """Why CUDA does not start; empty where it does."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  # its class depends on the cause
        return first_line(str(error))
    return ""


def _require_kernels(device: torch.device) -> None:
    """Raise BadInput where this PyTorch contains no code for the GPU, which would fail later."""
    try:
        capability = torch.cuda.get_device_capability(device)
    except Exception as error:
        raise device_error(error) from error
    architectures = torch.cuda.get_arch_list()
    if torch.version.cuda is None or has_kernels(architectures, capability):
        return
    major, minor = capability
    raise BadInput(
        f"{describe_device(device)} has compute capability {major}.{minor}, and PyTorch "
        f"{torch.__version__} has code for {', '.join(architectures)} only. Use another GPU: "
        "docs/gpus.md lists those that the image runs on."
    )


def has_kernels(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether code for any of these architectures, such as `sm_90`, runs on a GPU."""
    return not architectures or any(
        _runs_on(architecture, capability) for architecture in architectures
    )


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    match = ARCHITECTURE.fullmatch(architecture)
    if match is None:  # a name from a later PyTorch, which knows better
        return True
    kind, major, minor, suffix = match.groups()
    code = (int(major), int(minor))
    if suffix == "a":
        return code == capability
    same_generation = code[0] == capability[0]
    return code <= capability and (kind == "compute" or same_generation)


def describe_device(device: torch.device) -> str:
    """The device's name as people know it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_label(device: torch.device) -> str:
    """The device in metrics: the GPU's index, or how the environment names it, else `cpu`."""
    if device.type != "cuda":
        return device.type
    index = device.index or 0
    names = visible_gpus(os.environ, count_gpus())
    return names[index] if index < len(names) else str(index)


def report_memory(device: torch.device, label: str) -> None:
    """Report what is used of the memory of a GPU, if metrics are on; other devices have none."""
    if device.type != "cuda" or not DEVICE_MEMORY_BYTES.is_on:
        return
    for kind, size in (
        ("allocated", torch.cuda.memory_allocated(device)),
        ("reserved", torch.cuda.memory_reserved(device)),
        ("limit", torch.cuda.get_device_properties(device).total_memory),
    ):
        DEVICE_MEMORY_BYTES.set(size, device=label, kind=kind)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may succeed where this one did not."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        message in text for message in OUT_OF_MEMORY_MESSAGES
    )


def is_device_lost(error: Exception) -> bool:
    """Whether the device itself failed, so that it can compute nothing more for this process.

    On CUDA, asks the device: the first to notice may be cuDNN, cuBLAS or Triton, whose errors are
    like those of a bad prompt, or like those of memory that ran out.
    """
    if isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error):
        return True
    if not isinstance(error, RuntimeError) or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError as failure:
        return not is_out_of_memory(failure)
    return False


class DeviceFailed(TryAgain):
    """The device failed. `reason` is the error that shows it."""

    def __init__(self, reason: Exception, advice: str) -> None:
        """Take the error and what to do, as a sentence."""
        self.reason = reason
        super().__init__(
            f"the device{_on_node()} failed ({first_line(str(reason))}). {advice}{_node_advice()}"
        )


def device_error(error: Exception, advice: str = RUN_SHARD_AGAIN) -> DeviceFailed:
    """The failure to report for a device that failed. To be made where it is first noticed."""
    keep_shared_tensors()
    return DeviceFailed(error, advice)


def finish_device_work(device: torch.device) -> None:
    """Wait for the device before a model is freed. Where it failed, whoever uses it next is told.

    To be called once all images are read, which nothing can spoil any more.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except Exception:  # noqa: BLE001  # its class depends on who notices
        keep_shared_tensors()


def explain_machine(error: Exception, advice: str = RUN_SHARD_AGAIN) -> TryAgain | None:
    """The failure to report where an error is the machine's, whatever was drawn; else None."""
    return device_error(error, advice) if is_device_lost(error) else None


def explain_device(subject: str, error: Exception) -> TryAgain | None:
    """The failure to report where the device is why this did not get there; None where it is not.

    `subject` is the setting or the model that is at hand.
    """
    if failure := explain_machine(error):
        return failure
    if is_out_of_memory(error):
        reason = error_reason(error).rstrip(".")
        return TryAgain(
            f"{subject}: the device has no room for it ({reason}). Run the shard again."
        )
    return None


def loading(subject: str) -> AbstractContextManager[None]:
    """Report where the device has no room for what the block loads, or fails. Raises TryAgain."""
    return explained_by(partial(explain_device, subject))


@contextmanager
def device_advice(advice: str) -> Iterator[None]:
    """Report a device that fails in the block with this advice, whoever noticed it."""
    try:
        yield
    except DeviceFailed as error:
        raise device_error(error.reason, advice) from error


def _on_node() -> str:
    node = os.environ.get(NODE_VARIABLE)
    return f" on node {node}" if node else ""


def _node_advice() -> str:
    node = os.environ.get(NODE_VARIABLE)
    return f" If this node fails again: kubectl cordon {node}" if node else ""


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream for work beside the batches; None on devices that have none and work in order.

    Its small kernels go first: behind those of a batch, each would wait for a free place.
    """
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def record_event(*, timed: bool = False) -> torch.cuda.Event:
    """An event that comes once all work queued on the current stream is done. Waiters sleep."""
    event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class DeviceEvent(Protocol):
    """A point in the device's work that comes when all work queued before it is done."""

    def synchronize(self) -> None:
        """Wait for it. Raises what went wrong on the device before it."""


def wait_for_event(event: DeviceEvent) -> None:
    """Wait for the device. Raises TryAgain where it failed."""
    try:
        event.synchronize()
    except Exception as error:  # whatever it was, what was queued before it is lost
        raise device_error(error) from error


def synchronized_time(device: torch.device) -> float:
    """Seconds on a clock, read once the device has done all work queued so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def free_memory() -> None:
    """Return what nothing uses to the device: after a batch that did not fit, or with a model."""
    gc.collect()  # tensors in reference cycles, such as those of tracebacks
    if torch.cuda.is_available():
        with suppress(torch.AcceleratorError):  # a lost device has failed where it was used
            torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def device_memory(device: torch.device) -> int | None:
    """Bytes of the device, or of this process's slice of it;

    None where it shares the machine's memory.
    """
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def reset_peak(device: torch.device) -> None:
    """Start a new measurement of peak memory."""
    free_memory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes in use at once since then;

    None where the device shares the machine's memory.
    """
    return process_peak_bytes(device) if device.type == "cuda" else None


def process_peak_bytes(device: torch.device) -> int:
    """The most bytes that this process used at once: on CUDA the device's, else the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in KiB
