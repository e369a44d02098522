"""Seconds of calls on a device."""

import gc
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]


def synchronize() -> None:
    """Wait until the device has done all work queued so far."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def call_seconds(call: Call) -> float:
    """Seconds of one call."""
    synchronize()
    started = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - started


def median_seconds(call: Call, seconds: float = 1.0, max_calls: int = 30) -> float:
    """Median seconds of a call that was made before: of three calls, more while there is time."""
    durations: list[float] = []
    deadline = time.monotonic() + seconds
    while len(durations) < max_calls:
        if len(durations) >= 3 and time.monotonic() > deadline:
            break
        durations.append(call_seconds(call))
    return sorted(durations)[len(durations) // 2]


def launch_seconds(call: Call) -> float:
    """Seconds that the host takes to queue a call on the device."""
    synchronize()
    started = time.perf_counter()
    call()
    launched = time.perf_counter() - started
    synchronize()
    return launched


def release_memory() -> None:
    """Free the device's memory that nothing refers to any more, and start a new peak."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
