"""The device: choice, name, clock, memory and failures."""

import gc
import os
import resource
import sys
import time
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Protocol

import torch

from imagekiln.steps.errors import BadInput, KilnError, TryAgain, explained_by, first_line
from imagekiln.steps.generate.diffusion.patches import keep_shared_tensors
from imagekiln.steps.models.placement import GIB
from imagekiln.steps.runtime.machine import VISIBLE_DEVICES_VARIABLE, find_nvidia_gpu, visible_gpus
from imagekiln.steps.runtime.metrics import DEVICE_MEMORY_BYTES
from imagekiln.steps.storage.failures import error_reason

# Messages of libraries without an error class for it: CUDA and MPS; PyTorch's allocator on the CPU;
# cuBLAS, also if there is no room for its handle; cuDNN, if there is none for a convolution's
# workspace.
OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "unable to find an engine to execute",
)
RUN_AGAIN = "Run the command again."
LARGER_GPU = (
    "Choose a larger GPU, a smaller model, fewer adapters, passes and scores, or another "
    "speed.placement."
)
MAX_CONTEXT_BYTES = 2 * GIB  # of CUDA and its kernels, in each process, in no allocator's count
NODE_VARIABLE = "IMAGEKILN_NODE"  # the name of the Kubernetes node, in pods that have a GPU
# PyTorch has one error class for all problems of CUDA, so only the message tells.
OLD_DRIVER_MESSAGE = "is too old"
NO_CODE_MESSAGE = "no kernel image is available"


def describe_device(device: torch.device) -> str:
    """Return the device's product name, such as `NVIDIA H100`, or its type without CUDA."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_label(device: torch.device) -> str:
    """Return the device's label in metrics: a GPU's name or index, else its type, such as `cpu`."""
    if device.type != "cuda":
        return device.type
    index = device.index or 0
    names = find_gpus()
    return names[index] if index < len(names) else str(index)


def find_gpus() -> list[str]:
    """List the names or indexes of the GPUs that are visible to this process."""
    return visible_gpus(os.environ, torch.cuda.device_count())


def report_memory(device: torch.device, label: str) -> None:
    """Report the used memory of a GPU, if metrics are on. Other devices report nothing."""
    if device.type != "cuda" or DEVICE_MEMORY_BYTES.series is None:
        return
    for kind, size in (
        ("allocated", torch.cuda.memory_allocated(device)),
        ("reserved", torch.cuda.memory_reserved(device)),
        ("limit", torch.cuda.get_device_properties(device).total_memory),
    ):
        DEVICE_MEMORY_BYTES.set(size, device=label, kind=kind)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether a smaller batch may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        message in text for message in OUT_OF_MEMORY_MESSAGES
    )


def is_device_lost(error: Exception) -> bool:
    """Return whether the device failed, so that this process can no longer use it.

    Queries CUDA, since cuDNN, cuBLAS or Triton may notice first, with errors like a bad prompt's.
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


class DeviceShared(TryAgain):
    """Other processes hold the device's memory."""


def device_error(error: Exception) -> TryAgain:
    """Build the error for a device that failed. Keeps tensors that must not be freed any more."""
    keep_shared_tensors()
    return TryAgain(f"the device failed ({first_line(str(error))}). {RUN_AGAIN}{node_advice()}")


def finish_device_work(device: torch.device) -> None:
    """Wait for the device, after all images are read and before a model is freed.

    If the device failed, its next use reports it.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except Exception:  # noqa: BLE001  # its class depends on the library
        keep_shared_tensors()


def explain_machine(error: Exception) -> TryAgain | None:
    """Return the TryAgain to report if the device failed; else None."""
    return device_error(error) if is_device_lost(error) else None


def explain_device(subject: str, error: Exception) -> KilnError | None:
    """Return the error to report if the device caused this one; else None.

    `subject` is the setting or model that it was used for.
    """
    if failure := explain_machine(error):
        return failure
    if is_out_of_memory(error):
        return explain_no_room(f"{subject}: the device has no room for it", error_reason(error))
    return None


def explain_no_room(problem: str, reason: str, remedy: str = LARGER_GPU) -> KilnError:
    """Return the error to report if memory ran out: BadInput if no other process uses the GPU.

    `problem` begins the message. `remedy` ends the message of a BadInput.
    """
    problem = f"{problem} ({first_line(reason).rstrip('.')})"
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return TryAgain(f"{problem}. {RUN_AGAIN}")  # the CPU's memory is shared
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    if others > MAX_CONTEXT_BYTES:
        return DeviceShared(
            f"{problem}: other processes hold {others / GIB:.1f} of its "
            f"{total / GIB:.1f} GiB (nvidia-smi lists them). End them, then: {RUN_AGAIN}"
        )
    return BadInput(
        f"{problem}, though this process has all of its {total / GIB:.1f} GiB. {remedy}"
    )


def loading(subject: str) -> AbstractContextManager[None]:
    """Convert errors in the block if the device lacks room for the model, or fails."""
    return explained_by(partial(explain_device, subject))


def explained(subject: str, problem: str, remedy: str) -> AbstractContextManager[None]:
    """Convert errors in the block to the device's failure, or to a BadInput with this problem."""
    return explained_by(
        lambda error: (
            explain_device(subject, error)
            or BadInput(f"{problem} ({error_reason(error)}). {remedy}")
        )
    )


def node_advice() -> str:
    """Return a sentence on what to do if the node fails again; empty outside a pod."""
    node = os.environ.get(NODE_VARIABLE)
    return f" If node {node} fails again: kubectl cordon {node}" if node else ""


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Create a CUDA stream for work beside the batches; None on other devices.

    It has a higher priority, so that its small kernels do not wait behind a batch.
    """
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def record_event(*, timed: bool = False) -> torch.cuda.Event:
    """Record an event after all work queued on the current stream. Waiting for it does not spin."""
    event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class DeviceEvent(Protocol):
    """An event that is reached once the device has done all work queued before it."""

    def synchronize(self) -> None:
        """Wait for the event. Raises any error of the device before it."""


def wait_for_event(event: DeviceEvent) -> None:
    """Wait for an event. Raises TryAgain if the device failed."""
    try:
        event.synchronize()
    except Exception as error:  # in any case, the queued work is lost
        raise device_error(error) from error


def synchronized_time(device: torch.device) -> float:
    """Wait for all work queued on the device, then read the clock, in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def free_memory() -> None:
    """Free unused memory of the device, after a batch that did not fit or with a model."""
    gc.collect()  # tensors in reference cycles, such as those of tracebacks
    if torch.cuda.is_available():
        with suppress(torch.AcceleratorError):  # a lost device has been reported
            torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of a GPU or of its slice; None if the device uses the machine's memory."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def reset_peak(device: torch.device) -> None:
    """Start a new measurement of peak memory."""
    free_memory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def process_peak_bytes(device: torch.device) -> int:
    """Return this process's peak memory in bytes: of the GPU on CUDA, else of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in KiB


def choose_device(name: str) -> torch.device:
    """Return the device for the job's setting `device`; `auto` chooses the best one.

    Raises BadInput if this PyTorch has no kernels for it, TryAgain if it does not respond.
    """
    device = torch.device(choose_kind(name))
    if device.type != "cuda":
        return device
    try:
        torch.ones(1, device=device).sum().item()
    except Exception as error:
        if NO_CODE_MESSAGE not in str(error):
            raise explain_device("PyTorch", error) or device_error(error) from error
        raise BadInput(
            f"{describe_device(device)}: this PyTorch ({torch.__version__}) "
            "has no code for it. Use another GPU: docs/gpus.md lists those that the image runs on. "
            "Or set device: cpu."
        ) from error
    return device


def choose_kind(name: str) -> str:
    """Return the device type for the job's setting `device`. `auto` is the CPU only without a GPU.

    Raises TryAgain if the device is missing or broken, BadInput if PyTorch can never use it.
    """
    if torch.cuda.is_available() and name in ("cuda", "auto"):
        return "cuda"
    if torch.backends.mps.is_available() and name in ("mps", "auto"):
        return "mps"
    gpu = find_nvidia_gpu() if visible_gpus(os.environ, 1) else None  # unless GPUs are hidden
    if name == "cpu" or (name == "auto" and gpu is None):
        return "cpu"
    raise _missing_device("cuda" if name == "auto" else name, gpu)


def _missing_device(name: str, gpu: str | None) -> KilnError:
    """Build the error for a device that is not available, with CUDA's reason."""
    subject = f"device {name!r}" if gpu is None else gpu
    version = torch.version.cuda or torch.version.hip  # ROCm goes by the name of CUDA
    if not (torch.backends.mps.is_built() if name == "mps" else version):
        return BadInput(
            f"{subject} cannot be used: this PyTorch ({torch.__version__}) is built "
            f"without {name.upper()}. Install a PyTorch with {name.upper()}, or set device: cpu."
        )
    reason = _cuda_failure() if name == "cuda" else "PyTorch finds none"
    if OLD_DRIVER_MESSAGE in reason:
        return BadInput(
            f"the GPU's driver is too old for this PyTorch, which is built for CUDA "
            f"{torch.version.cuda}: {reason}. Update the driver (CUDA 13 needs 580 or later) or "
            "run on nodes that have it. Data-center GPUs with driver 535, 550 or 570 need an image "
            "with NVIDIA's compatibility libraries: docs/gpus.md. Or set device: cpu."
        )
    return TryAgain(  # another node may have a working one
        f"{subject} is not there, or PyTorch cannot use it ({reason}). Run where it is, "
        "or see what nvidia-smi and dmesg say of its driver; a container needs NVIDIA's container "
        f"toolkit. Or set device: cpu.{node_advice()}"
    )


def _cuda_failure() -> str:
    """Return the reason that CUDA does not start, as the end of a clause."""
    reason = "it finds none"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001  # its class depends on the cause
        reason, *_ = str(error).partition(" Please ")  # cut installation advice
    visible = os.environ.get(VISIBLE_DEVICES_VARIABLE)
    reason = first_line(reason).rstrip(".")
    return reason if visible is None else f'{reason}; {VISIBLE_DEVICES_VARIABLE} is "{visible}"'
