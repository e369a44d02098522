"""Shared by the benchmarks: measuring a function in its own process, and printing a table."""

import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

MIB = 2**20
LIBRARIES = ("pyarrow", "duckdb", "numpy", "tokenizers")
CPU_INFO = Path("/proc/cpuinfo")
# The unit in which the system counts the peak memory of a process, in bytes.
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """Wall seconds, CPU seconds of all threads, and the peak memory of a process."""

    seconds: float
    cpu_seconds: float
    peak_mib: int


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that lasts as long as the block."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as name:
        yield Path(name)


def usage_cells(count: int, usage: Usage, peer: Usage) -> tuple[str, ...]:
    """Cells of a table: seconds, CPU seconds, items/s, share of the peer's speed, peak memory."""
    rate = count / usage.seconds
    share = peer.seconds / usage.seconds
    return (
        f"{usage.seconds:.1f}",
        f"{usage.cpu_seconds:.1f}",
        f"{rate:,.0f}",
        f"{share:.2f}",
        str(usage.peak_mib),
    )


def measure_usage(work: Callable[..., object], *arguments: object) -> Usage:
    """Do the work in a fresh process, so that its memory is its own. Imports are not timed."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        future = pool.submit(_measure, work, arguments)
        return future.result()


def _measure(work: Callable[..., object], arguments: tuple[object, ...]) -> Usage:
    started = time.perf_counter()
    cpu_started = time.process_time()
    work(*arguments)
    seconds = time.perf_counter() - started
    cpu_seconds = time.process_time() - cpu_started

    resources = resource.getrusage(resource.RUSAGE_SELF)
    peak_bytes = resources.ru_maxrss * PEAK_UNIT
    return Usage(seconds, cpu_seconds, peak_bytes // MIB)


def machine() -> str:
    """Where this runs: processor, cores, load, Python and libraries."""
    cores = os.cpu_count()
    load, _, _ = os.getloadavg()
    facts = [
        _processor(),
        f"{cores} cores (load {load:.1f} at the start)",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in LIBRARIES),
    ]
    return ", ".join(facts)


def _processor() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                _, _, name = line.partition(":")
                return name.strip()
    return platform.processor()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their header, in columns flush right."""
    all_rows = [header, *rows]
    widths: list[int] = []
    for column in zip(*all_rows, strict=True):
        lengths = [len(cell) for cell in column]
        widths.append(max(lengths))
    lines = [_table_line(row, widths) for row in all_rows]
    return "\n".join(lines)


def _table_line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join(cells)
