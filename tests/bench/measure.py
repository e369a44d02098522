"""Shared by the benchmarks: measuring a function in its own process, and printing a table."""

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
MIB = 2**20
LIBRARIES = ("pyarrow", "duckdb", "numpy", "tokenizers")


@dataclass(frozen=True, slots=True)
class Measured:
    """Wall seconds, CPU seconds of all threads, and the peak memory of the process."""

    seconds: float
    cpu_seconds: float
    peak_mib: int


def beside(count: int, took: Measured, peer: Measured) -> tuple[str, ...]:
    """Cells of a table: seconds, CPU seconds, items/s, share of the peer's speed, peak memory."""
    return (
        f"{took.seconds:.1f}",
        f"{took.cpu_seconds:.1f}",
        f"{count / took.seconds:,.0f}",
        f"{peer.seconds / took.seconds:.2f}",
        str(took.peak_mib),
    )


def measured(work: Callable[..., object], *arguments: object) -> Measured:
    """Do the work in a fresh process, so that its memory is its own. Imports are not timed."""
    return apart(_measure, work, arguments)


def apart(work: Callable[..., T], *arguments: object) -> T:
    """What the work gives, in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def machine() -> str:
    """Where this runs: processor, cores, load, Python and libraries."""
    cores, load = os.cpu_count(), os.getloadavg()[0]
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return (
        f"{_processor()}, {cores} cores (load {load:.1f} at the start), "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {libraries}"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their header, in columns flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        for row in (header, *rows)
    ]
    return "\n".join("  ".join(line) for line in lines)


def _measure(work: Callable[..., object], arguments: tuple[object, ...]) -> Measured:
    started, cpu = time.perf_counter(), time.process_time()
    work(*arguments)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    unit = 1 if sys.platform == "darwin" else 1024  # what the kernel counts the peak in, in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return Measured(seconds, cpu_seconds, peak // MIB)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())
