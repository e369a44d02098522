"""The device that was asked for, and no other."""

import resource
import sys
import time

import torch

from imagekiln.steps.errors import TryAgain

# What CUDA and MPS, PyTorch's allocator on the CPU, cuBLAS, and convolutions that find no room to work in by cuDNN
# say, who have no error class of their own for it.
OUT_OF_MEMORY_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "STATUS_ALLOC_FAILED",
    "unable to find an engine to execute",
)


def choose_device(wanted: str) -> torch.device:
    """The device of the job's `device`; `auto` takes the best there is. Raises TryAgain where it is not there."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if wanted == "auto":
        return torch.device(next(name for name, here in there.items() if here))
    if not there[wanted]:
        raise TryAgain(f"device {wanted!r} is not there. Run where it is, or set device: auto.")
    return torch.device(wanted)


def describe_device(device: torch.device) -> str:
    """The device as people know it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def process_peak_bytes(device: torch.device) -> int:
    """The most bytes that this process had in use at once: on the device where that is CUDA, else of the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def is_out_of_memory(error: Exception) -> bool:
    """Whether a smaller batch may get through where this one did not."""
    said = isinstance(error, RuntimeError) and any(
        words in str(error) for words in OUT_OF_MEMORY_MESSAGES
    )
    return said or isinstance(error, torch.OutOfMemoryError | MemoryError)


def is_device_lost(error: Exception) -> bool:
    """Whether the device itself failed, so that nothing more can be made on it."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream for what goes on beside the batches; None where devices have none, and all is done in turn."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def record_event(*, timed: bool = False) -> torch.cuda.Event:
    """What the current stream comes to when all that was asked of it so far is done. Who waits for it sleeps."""
    made = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
    made.record()
    return made


def device_error(error: Exception) -> TryAgain:
    """What to say of a device that failed."""
    return TryAgain(f"the device failed ({str(error)[:200]}). Run the shard again.")


def free_memory() -> None:
    """Give back what the allocator holds, after a batch that did not fit."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def synchronized_time(device: torch.device) -> float:
    """Seconds on a clock, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def device_memory(device: torch.device) -> int | None:
    """The bytes of the device, or of the slice of it that this process sees; None where it shares the machine's."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def reset_peak(device: torch.device) -> None:
    """Begin to watch memory anew."""
    free_memory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes in use at once since then; None where the device shares the machine's memory."""
    return process_peak_bytes(device) if device.type == "cuda" else None
