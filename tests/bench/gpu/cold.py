"""Section `cold`: a process of `imagekiln generate`, with and without compiled code."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.bench.gpu.report import format_seconds
from tests.bench.gpu.session import Session
from tests.bench.jobs import plan_work
from tests.bench.measure import scratch_folder
from tests.bench.processes import in_child
from tests.bench.starts import ShardProcess, Start
from tests.bench.work import Work

STEPS = 2
SECONDS_PER_START = 40.0


def measure_cold(session: Session) -> None:
    """Starts with nothing kept, with the code that the first start kept, two at once, and plain."""
    work = replace(session.job_work, images=session.work.batch, steps=STEPS)
    with scratch_folder() as folder:
        uncompiled = replace(work, compile=False)
        plain = _plan(uncompiled, folder, 0)
        _measure(session, "plain", [plain])
        if not work.compile:
            return
        uris = [_plan(work, folder, number) for number in range(1, 5)]
        _measure(session, "nothing_kept", uris[:1])
        _measure(session, "kept", uris[1:2])
        _measure(session, "two_at_once", uris[2:])


def _plan(work: Work, folder: Path, number: int) -> str:
    """A planned run with prompts of its own. All runs of one folder share compiled code."""
    first = number * work.images
    end = first + work.images
    numbers = range(first, end)
    return in_child(plan_work, work, folder, numbers)


def _measure(session: Session, name: str, uris: Sequence[str]) -> None:
    if not session.has_time_for(f"cold, {name}", SECONDS_PER_START):
        return
    starts = _start_all(uris)
    slowest = max(starts, key=lambda start: start.wall)
    figure = f"cold.{name}"
    session.report.figure(figure, slowest.wall, "s from start to end")
    stages = format_seconds(slowest.stages)
    session.report.note(f"{figure}, stages in stats/: {stages}")


def _start_all(uris: Sequence[str]) -> list[Start]:
    """Start a process for each run at once."""
    processes = [ShardProcess(uri, _environment(uri)) for uri in uris]
    return [process.wait() for process in processes]


def _environment(uri: str) -> dict[str, str]:
    """Where PyTorch keeps compiled code: beside the runs, which share it."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(Path(uri).parent / "compiled-code")}
