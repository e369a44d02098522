"""Several GPUs in one pod: a process for each, on a shard of its own, so that they share nothing but the pod."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store

PROGRESS_VARIABLE = "ARGO_PROGRESS_FILE"
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
PROGRESS_SECONDS = 2.0
TRY_AGAIN_CODE = 75


def generate_shards(run: str, lot: int, workers: int) -> int:
    """Make the lot-th of the lots of `workers` shards that the run falls into; give the exit code of them together."""
    shards = len(load_plan(open_store(run)).shards)
    mine = range(lot * workers, min((lot + 1) * workers, shards))
    if lot < 0 or not mine:
        raise BadInput(
            f"{run}: has {shards} shards, none of them in lot {lot} of {workers}. Count from 0."
        )
    command = (sys.executable, "-m", "imagekiln", "generate", "--shard")
    return run_workers([(*command, str(shard), "--", run) for shard in mine], os.environ)


def run_workers(commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> int:
    """Run the commands at once, each with one GPU, and wait for all. SIGTERM goes on to each of them, once.

    75 where any may be tried again or was killed, else the first that is not 0.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="imagekiln-workers-")))
        started: list[subprocess.Popen[bytes]] = []
        _forward_signals(started, stack)
        for place, command in enumerate(commands):
            # Of a session of its own: a signal to ours reaches it only from here, so that it never counts two.
            own = _worker_environment(environment, place, folder)
            started.append(subprocess.Popen(command, env=own, start_new_session=True))
        if PROGRESS_VARIABLE in environment:
            stack.enter_context(
                _ProgressSum(folder, len(commands), Path(environment[PROGRESS_VARIABLE]))
            )
        codes = [process.wait() for process in started]
    if any(code == TRY_AGAIN_CODE or code < 0 for code in codes):
        return TRY_AGAIN_CODE
    return next((code for code in codes if code), 0)


def _worker_environment(environment: Mapping[str, str], place: int, folder: Path) -> dict[str, str]:
    devices = [each for each in environment.get(VISIBLE_DEVICES_VARIABLE, "").split(",") if each]
    own = {VISIBLE_DEVICES_VARIABLE: devices[place] if place < len(devices) else str(place)}
    return {**environment, **own} | (
        {PROGRESS_VARIABLE: str(folder / str(place))} if PROGRESS_VARIABLE in environment else {}
    )


def _forward_signals(started: Sequence[subprocess.Popen[bytes]], stack: ExitStack) -> None:
    def asked(number: int, _frame: FrameType | None) -> None:
        for process in started:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        stack.callback(signal.signal, number, signal.signal(number, asked))


class _ProgressSum:
    """While entered, the sum of the workers' progress is written where Argo looks."""

    def __init__(self, folder: Path, workers: int, file: Path) -> None:
        self._files = [folder / str(place) for place in range(workers)]
        self._file = file
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._write_sum()

    def _watch(self) -> None:
        while not self._done.wait(PROGRESS_SECONDS):
            self._write_sum()

    def _write_sum(self) -> None:
        # Progress is for the eye: a file that is not there yet, or half written, is looked at again.
        with suppress(OSError, ValueError):
            pairs = [file.read_text(encoding="utf-8").split("/") for file in self._files]
            self._file.write_text(
                "/".join(str(sum(int(pair[side]) for pair in pairs)) for side in (0, 1)) + "\n"
            )
