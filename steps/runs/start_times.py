"""The time of a process up to its first denoising step, phase by phase."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from imagekiln.steps.runtime.figures import format_duration

START_TIME_FIELD = 22  # of /proc/self/stat, in clock ticks since the machine started
MAX_PROCESS_AGE = 3600.0  # seconds: what is older did not just start

Phase = Literal["imports", "load", "device", "hash_wait"]
PHASE_LABELS = {
    "imports": "imports",
    "load": "load",
    "device": "device",
    "hash_wait": "wait for the hash",
    "compile": "compiling",
    "first_step": "first step",
    "rest": "other",
}


@dataclass(slots=True)
class StartSeconds:
    """Wall time from the start of a process to the end of its first denoising step.

    The phases came one after another: `imports` of libraries, `load` of the model's files into
    memory, `device` for its context and the weights on their way to it, `hash_wait` until the files
    were known to be the planned ones, `compile` for compiling or loading compiled code, and
    `first_step`, with the texts before it. Beside them ran `hash`, reading and hashing the model's
    files.
    """

    total: float = 0.0
    imports: float = 0.0
    load: float = 0.0
    device: float = 0.0
    hash_wait: float = 0.0
    compile: float = 0.0
    first_step: float = 0.0
    hash: float = 0.0

    @property
    def rest(self) -> float:
        """The time in no phase: reading the plan and the shard, fetching a model, LoRAs."""
        waiting = self.device + self.hash_wait + self.compile
        phases = self.imports + self.load + waiting + self.first_step
        return max(0.0, self.total - phases)


def format_start(start: StartSeconds) -> str:
    """A sentence of the seconds in all and of each phase that took any."""
    phases = [
        f"{label} {format_duration(getattr(start, name))}"
        for name, label in PHASE_LABELS.items()
        if getattr(start, name) >= 0.05
    ]
    beside = f"; hashing beside them {format_duration(start.hash)}" if start.hash else ""
    return f"First step after {format_duration(start.total)}: {', '.join(phases)}{beside}."


class StartClock:
    """Times the phases of a start, all in one thread."""

    def __init__(self, age: float = 0.0) -> None:
        """Begin. The process is `age` seconds old, which passed with importing."""
        self._seconds = StartSeconds(imports=age)
        self._began = time.perf_counter() - age
        self._began_drawing: float | None = None
        self._done = False

    @classmethod
    def of_process(cls) -> "StartClock":
        """Begin with the start of the process; without /proc, now."""
        return cls(_process_age())

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began

    @property
    def seconds(self) -> StartSeconds | None:
        """The seconds of all phases; None before the end of the first step."""
        return self._seconds if self._done else None

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count the block as a part of this phase; after the first step, of none."""
        started = time.perf_counter()
        try:
            yield
        finally:
            if not self._done:
                seconds = getattr(self._seconds, name) + time.perf_counter() - started
                setattr(self._seconds, name, seconds)

    def begin_drawing(self) -> None:
        """Count what follows as the first step, but for compiling."""
        self._began_drawing = time.perf_counter()

    def end_first_step(self, compile_seconds: float, hash_seconds: float) -> StartSeconds | None:
        """End with the first of all steps, and return the seconds; later ones count nothing.

        Of the time since drawing began, compiling took `compile_seconds`.
        """
        if self._done or self._began_drawing is None:
            return None
        now = time.perf_counter()
        self._done = True
        self._seconds.total = now - self._began
        self._seconds.compile = compile_seconds
        self._seconds.first_step = max(0.0, now - self._began_drawing - compile_seconds)
        self._seconds.hash = hash_seconds
        return self._seconds


def _process_age() -> float:
    """Seconds since this process started; 0 if the system does not say."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        content = Path("/proc/self/stat").read_text()
        # The name of the program comes second, in parentheses, and may hold anything.
        _, _, after_name = content.rpartition(")")
        ticks = int(after_name.split()[START_TIME_FIELD - 3])
        started = ticks / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
        if 0 <= age < MAX_PROCESS_AGE:
            return age
    return 0.0
