"""Section `cold`: from the start of a process to its first step, with and without compiled code."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from imagekiln.steps.plan.step import make_plan
from tests.bench.gpu.session import Session, scratch_folder
from tests.bench.processes import in_child
from tests.bench.work import Work, job

ROOT = Path(__file__).parents[3]
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # what a fresh pod has none of
STEPS = 2
SECONDS_PER_START = 40.0


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The seconds from the start of a process to the end of each phase, and its own statistics."""

    phases: dict[str, float]
    stats: dict[str, object]


def measure_cold(session: Session) -> None:
    """Starts with nothing kept, with the code that the first start kept, two at once, and plain."""
    work = replace(session.job_work, images=session.work.batch, steps=STEPS)
    with scratch_folder() as folder:
        plain = replace(work, compile=False)
        _measure(session, "plain", [_plan(plain, folder, 0)])
        if not work.compile:
            return
        for place, name in enumerate(("nothing_kept", "kept"), start=1):
            _measure(session, name, [_plan(work, folder, place)])
        _measure(session, "two_at_once", [_plan(work, folder, place) for place in (3, 4)])


def _plan(work: Work, folder: Path, place: int) -> str:
    """A planned run of its own; all of one folder share compiled code."""
    numbers = range(place * work.images, (place + 1) * work.images)
    return in_child(plan_job, work, folder, numbers)


def plan_job(work: Work, folder: Path, numbers: range) -> str:
    """Plan the work, and return where."""
    return make_plan(job(work, folder, numbers)).uri


def _measure(session: Session, name: str, uris: list[str]) -> None:
    if not session.has_time_for(f"cold, {name}", SECONDS_PER_START):
        return
    starts = list(_start_all(uris))
    slowest = max(starts, key=lambda start: start.phases["first_step"])
    before = 0.0
    lasted: dict[str, float] = {}
    for phase, end in slowest.phases.items():
        lasted[f"{phase}_seconds"] = round(end - before, 2)
        before = end
    session.report.figure(f"cold.{name}", slowest.phases["first_step"], "s to the first step")
    session.report.note(f"cold.{name}, phases: {json.dumps(lasted)}")
    session.report.note(f"cold.{name}, stats/: {json.dumps(_timings(slowest.stats))}")


def _timings(stats: dict[str, object]) -> dict[str, object]:
    """What the statistics say of seconds and phases, whatever there is."""
    names = [name for name in stats if "seconds" in name or "phases" in name]
    return {name: stats[name] for name in [*names, "compile_mode"] if stats.get(name)}


def _start_all(uris: list[str]) -> Iterator[ColdStart]:
    """Start a process for each run at once, each with empty caches of its own."""
    with scratch_folder() as folder:
        children = [_start(uri, folder / str(place)) for place, uri in enumerate(uris)]
        for child in children:
            _, errors = child.communicate()
            if child.returncode != 0:
                raise RuntimeError(f"a cold start failed:\n{errors[-3000:]}")
            yield _parse(errors)


def _start(uri: str, caches: Path) -> subprocess.Popen[str]:
    fresh = {name: str(caches / name) for name in CACHES}
    command = [sys.executable, "-m", "tests.bench.gpu.cold_start", uri, str(time.time())]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | fresh, stderr=subprocess.PIPE, text=True
    )


def _parse(errors: str) -> ColdStart:
    phases: dict[str, float] = {}
    stats: dict[str, object] = {}
    for line in errors.splitlines():
        if line.startswith('{"phase"'):
            entry = json.loads(line)
            phases[entry["phase"]] = entry["seconds"]
        if line.startswith('{"stats"'):
            stats = json.loads(line)["stats"]
    return ColdStart(phases, stats)
