"""What this process holds: memory of the machine and of the device, and threads."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.bench.measure import MIB

RESIDENT_FIELD = 1  # of /proc/self/statm, in pages


@dataclass(frozen=True, slots=True)
class Readings:
    """Memory in MiB, and threads. `device` counts the driver and other processes too."""

    host: int
    device: int
    reserved: int
    threads: int

    def since(self, earlier: "Readings") -> dict[str, int]:
        """By how much every reading grew."""
        return {name: getattr(self, name) - getattr(earlier, name) for name in Readings.__slots__}


def take_readings() -> Readings:
    """The readings of this moment."""
    return Readings(
        host=process_mib(),
        device=device_mib(),
        reserved=reserved_mib(),
        threads=thread_count(),
    )


def process_mib() -> int:
    """Resident memory of this process, in MiB."""
    fields = Path("/proc/self/statm").read_text().split()
    pages = int(fields[RESIDENT_FIELD])
    return pages * os.sysconf("SC_PAGE_SIZE") // MIB


def device_mib() -> int:
    """Memory in use on the whole device, in MiB, the driver's own included; 0 without CUDA."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


def reserved_mib() -> int:
    """What PyTorch's allocator has reserved on the device, in MiB; 0 without CUDA."""
    if not torch.cuda.is_available():
        return 0
    return torch.cuda.memory_reserved() // MIB


def thread_count() -> int:
    """Threads of this process, those of libraries included."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir()))
