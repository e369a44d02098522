"""The device that was asked for and no other, its clock, its memory and its failures."""

import resource
import sys
import time

import torch

from imagekiln.steps.errors import TryAgain

# What libraries without an error class for it say: CUDA and MPS; PyTorch's allocator on the CPU;
# cuBLAS; and cuDNN, where a convolution finds no room for its workspace.
OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "unable to find an engine to execute",
)


def choose_device(name: str) -> torch.device:
    """The device of the job's `device`;

    `auto` takes the best one. Raises TryAgain where it is missing.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, is_available in available.items() if is_available))
    if not available[name]:
        raise TryAgain(f"device {name!r} is not there. Run where it is, or set device: auto.")
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """The device's name as people know it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def is_out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may succeed where this one did not."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        message in text for message in OUT_OF_MEMORY_MESSAGES
    )


def is_device_lost(error: Exception) -> bool:
    """Whether the device itself failed, so that it can compute nothing more for this process."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def device_error(error: Exception) -> TryAgain:
    """The failure to report for a device that failed."""
    return TryAgain(f"the device failed ({str(error)[:200]}). Run the shard again.")


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


def synchronized_time(device: torch.device) -> float:
    """Seconds on a clock, read once the device has done all work queued so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def free_memory() -> None:
    """Return what the allocator caches to the device, after a batch that did not fit."""
    if torch.cuda.is_available():
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
