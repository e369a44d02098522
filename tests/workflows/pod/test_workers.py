"""Several processes in one pod: their combined exit code, signals, devices and progress."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from imagekiln.workflows.pod.workers import run_workers


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("codes", "combined"),
    [((0, 0), 0), ((0, 2), 2), ((2, 75), 75), ((3, 0), 3), ((1, 2), 1), ((0, 75), 75)],
)
def test_exit_code_asks_for_another_try_where_one_worker_does(
    codes: tuple[int, ...], combined: int
) -> None:
    commands = [_python(f"raise SystemExit({code})") for code in codes]
    assert run_workers(commands, os.environ) == combined


def test_killed_worker_asks_for_another_try() -> None:
    commands = [_python("import os; os.kill(os.getpid(), 9)"), _python("raise SystemExit(2)")]
    assert run_workers(commands, os.environ) == 75


def test_every_worker_sees_a_gpu_of_its_own(tmp_path: Path) -> None:
    write = (
        "import os, pathlib; "
        f"pathlib.Path({str(tmp_path)!r}, os.environ['CUDA_VISIBLE_DEVICES']).touch()"
    )
    assert run_workers([_python(write)] * 2, os.environ | {"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert run_workers([_python(write)] * 2, os.environ | {"CUDA_VISIBLE_DEVICES": "5,7"}) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "5", "7"]


def test_progress_of_all_workers_is_summed(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    write = "import os, pathlib; pathlib.Path(os.environ['ARGO_PROGRESS_FILE']).write_text('3/5')"
    assert run_workers([_python(write)] * 2, os.environ | {"ARGO_PROGRESS_FILE": str(file)}) == 0
    assert file.read_text(encoding="utf-8") == "6/10\n"


def test_sigterm_reaches_every_worker_once(tmp_path: Path) -> None:
    wait = (
        "import os, pathlib, signal, sys, time\n"
        f"file = pathlib.Path({str(tmp_path)!r}, str(os.getpid()))\n"
        "def count(*_):\n"
        "    file.write_text(file.read_text() + 'x')\n"
        "signal.signal(signal.SIGTERM, count)\n"
        "file.write_text('')\n"
        "while not file.read_text(): time.sleep(0.02)\n"
        "time.sleep(0.3)\n"
        "sys.exit(75)\n"
    )

    def stop() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    assert run_workers([_python(wait)] * 2, os.environ) == 75
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["x", "x"]
