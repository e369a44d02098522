"""A pod measured: a process that makes a shard, from its start to its end."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.runs import stats_of

ROOT = Path(__file__).parents[2]
MESSAGE_CHARACTERS = 3000


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds of a process that made a shard.

    `wall` and `cpu` are those of the whole process. `stages` of its work come from the shard's
    statistics.
    """

    wall: float
    cpu: float
    stages: dict[str, float]


class ShardProcess:
    """A Python process that makes the only shard of a planned run."""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        """Start `imagekiln generate`, with these variables besides those of this process."""
        self._uri = uri
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in wait
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "imagekiln", "generate", uri, "--shard", "0"],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )

    def wait(self) -> Start:
        """Wait for the end of the process. Raises RuntimeError where it failed."""
        _, status, usage = os.wait4(self._process.pid, 0)
        wall = time.perf_counter() - self._started
        cpu = usage.ru_utime + usage.ru_stime
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._require_success()
        return self._read_start(wall, cpu)

    def _require_success(self) -> None:
        with self._errors as file:
            file.seek(0)
            errors = file.read()
        if self._process.returncode != 0:
            raise RuntimeError(f"{self._uri}: a start failed:\n{errors[-MESSAGE_CHARACTERS:]}")

    def _read_start(self, wall: float, cpu: float) -> Start:
        stages: dict[str, float] = {}
        stats = stats_of(self._uri)
        if stats is not None:
            stages = asdict(stats.seconds)
        return Start(wall, cpu, stages)
