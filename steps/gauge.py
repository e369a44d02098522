"""What a device's clock and memory say."""

import time

import torch

from imagekiln.steps.device import free_memory, process_peak_bytes


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
