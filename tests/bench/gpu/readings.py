"""What this process holds: memory of the machine and of the device, and threads."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tests.bench.measure import MIB


@dataclass(frozen=True, slots=True)
class Readings:
    """Memory in MiB, and threads. `device` counts the driver and other processes too."""

    host: int
    device: int
    reserved: int
    threads: int

    def since(self, earlier: "Readings") -> dict[str, int]:
        """By how much each grew."""
        before = asdict(earlier)
        return {name: value - before[name] for name, value in asdict(self).items()}


def take_readings() -> Readings:
    """The readings of this moment."""
    return Readings(process_mib(), device_mib(), reserved_mib(), thread_count())


def process_mib() -> int:
    """Resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // MIB


def device_mib() -> int:
    """Memory in use on the whole device, in MiB, the driver's own included; 0 without CUDA."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MIB


def reserved_mib() -> int:
    """What PyTorch's allocator has reserved on the device, in MiB; 0 without CUDA."""
    return torch.cuda.memory_reserved() // MIB if torch.cuda.is_available() else 0


def thread_count() -> int:
    """Threads of this process, those of libraries included."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())
