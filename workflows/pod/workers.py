"""Several GPUs in one pod: a process for each, with a shard of its own; they share only the pod."""

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

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store

PROGRESS_VARIABLE = "ARGO_PROGRESS_FILE"
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
PROGRESS_SECONDS = 2.0


def generate_shards(run: str, pod_index: int, workers: int) -> int:
    """Make the shards of one pod, `workers` at once; give their combined exit code.

    Pod 0 makes the first `workers` shards of the run, pod 1 the next, and so on.
    """
    plan = load_plan(open_store(run))
    shard_count = len(plan.shards)
    first = pod_index * workers
    shards = range(first, min(first + workers, shard_count))
    if pod_index < 0 or not shards:
        raise BadInput(
            f"{run}: has {shard_count} shards, so pod {pod_index} of {workers} workers has none. "
            "Count pods from 0."
        )
    command = (sys.executable, "-m", "imagekiln", "generate", "--shard")
    commands = [(*command, str(shard), "--", run) for shard in shards]
    return run_workers(commands, os.environ)


def run_workers(commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> int:
    """Run the commands at once, each with one GPU, and wait for all. Signals reach each once.

    The exit code is 75 where any worker asks for another try or was killed, otherwise the first
    that is not 0.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="imagekiln-workers-"))
        progress_files = [Path(folder, str(index)) for index in range(len(commands))]

        _forward_signals(processes, stack)
        for index, command in enumerate(commands):
            own = _worker_environment(environment, index, progress_files[index])
            # In a session of its own, so that a signal to our group reaches it only from us.
            processes.append(subprocess.Popen(command, env=own, start_new_session=True))

        if PROGRESS_VARIABLE in environment:
            total = Path(environment[PROGRESS_VARIABLE])
            stack.enter_context(_ProgressSum(progress_files, total))
        codes = [process.wait() for process in processes]

    return _combine_exit_codes(codes)


def _combine_exit_codes(codes: Sequence[int]) -> int:
    for code in codes:
        if code == TryAgain.exit_code or code < 0:  # negative: killed by a signal
            return TryAgain.exit_code
    return next((code for code in codes if code != 0), 0)


def _forward_signals(processes: Sequence[subprocess.Popen[bytes]], stack: ExitStack) -> None:
    """Pass SIGTERM and SIGINT on to the processes, until the stack is closed."""

    def forward(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        previous = signal.signal(number, forward)
        stack.callback(signal.signal, number, previous)


def _worker_environment(
    environment: Mapping[str, str], index: int, progress_file: Path
) -> dict[str, str]:
    """The environment of one worker: it sees one of the pod's GPUs, and reports to its own file."""
    visible = environment.get(VISIBLE_DEVICES_VARIABLE, "")
    devices = [device for device in visible.split(",") if device]
    device = devices[index] if index < len(devices) else str(index)
    own = {VISIBLE_DEVICES_VARIABLE: device}
    if PROGRESS_VARIABLE in environment:
        own[PROGRESS_VARIABLE] = str(progress_file)
    return {**environment, **own}


class _ProgressSum:
    """Keeps the sum of the workers' progress in Argo's file, while entered."""

    def __init__(self, worker_files: Sequence[Path], total_file: Path) -> None:
        self._worker_files = worker_files
        self._total_file = total_file
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._update, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._write_sum()

    def _update(self) -> None:
        while not self._done.wait(PROGRESS_SECONDS):
            self._write_sum()

    def _write_sum(self) -> None:
        # A file that is missing or half written is read again the next time.
        with suppress(OSError, ValueError):
            done = 0
            planned = 0
            for file in self._worker_files:
                progress = file.read_text(encoding="utf-8")
                worker_done, _, worker_planned = progress.partition("/")
                done += int(worker_done)
                planned += int(worker_planned)
            self._total_file.write_text(f"{done}/{planned}\n")
