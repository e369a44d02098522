"""Section `cold`: from the start of a process to its first step, with and without compiled code.

The process is `imagekiln generate`, whose statistics tell the phases of its start. A version that
does not tell them is timed by a process of the benchmark's own that does the same.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.stats import ShardStats, load_stats
from imagekiln.steps.storage import open_store
from tests.bench.gpu.session import Session, scratch_folder
from tests.bench.processes import in_child
from tests.bench.work import Work, job

ROOT = Path(__file__).parents[3]
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # what a fresh pod has none of
MODEL_CACHE = "HF_HOME"
STEPS = 2
SECONDS_PER_START = 40.0
PHASES_TO_FIRST_STEP = ("interpreter", "imports", "load", "first_step")


@dataclass(frozen=True, slots=True)
class ColdStart:
    """The seconds from the start of a process to its first step, by phase, and to its end.

    `stages` are those of the shard's statistics.
    """

    first_step: float
    phases: dict[str, float]
    whole: float
    stages: dict[str, float]


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
    slowest = max(starts, key=lambda start: start.first_step)
    phases = json.dumps({phase: round(value, 2) for phase, value in slowest.phases.items()})
    session.report.figure(
        f"cold.{name}", slowest.first_step, "s to the first step", whole_seconds=slowest.whole
    )
    session.report.note(f"cold.{name}, phases: {phases}")
    session.report.note(f"cold.{name}, stages in stats/: {json.dumps(slowest.stages)}")


def _start_all(uris: list[str]) -> Iterator[ColdStart]:
    """Start a process for each run at once, each with empty caches of its own."""
    with scratch_folder() as folder:
        started = time.time()
        children = [_start(uri, folder / str(place)) for place, uri in enumerate(uris)]
        for uri, child in zip(uris, children, strict=True):
            _, errors = child.communicate()
            if child.returncode != 0:
                raise RuntimeError(f"a cold start failed:\n{errors[-3000:]}")
            yield _read_start(uri, errors, time.time() - started)


def _start(uri: str, caches: Path) -> subprocess.Popen[str]:
    environment = {name: str(caches / name) for name in CACHES}
    # Beside the runs: where pods keep compiled code for each other, unless it is in the output.
    environment[MODEL_CACHE] = str(Path(uri).parent / "model-cache")
    if _tells_start():
        command = [sys.executable, "-m", "imagekiln", "generate", uri, "--shard", "0"]
    else:
        command = [sys.executable, "-m", "tests.bench.gpu.cold_start", uri, str(time.time())]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stderr=subprocess.PIPE, text=True
    )


def _tells_start() -> bool:
    """Whether a shard's statistics have the phases of its start."""
    return "start" in {field.name for field in fields(ShardStats)}


def _read_start(uri: str, errors: str, whole: float) -> ColdStart:
    stats = load_stats(open_store(uri), 0)
    if stats is None:
        raise RuntimeError(f"{uri}: has no statistics of a start.")
    values = asdict(stats)
    stages = {name: round(value, 2) for name, value in values["seconds"].items() if value}
    if _tells_start():
        phases = dict(values["start"])
        return ColdStart(phases.pop("total"), phases, whole, stages)
    ends = [json.loads(line) for line in errors.splitlines() if line.startswith('{"phase"')]
    phases = {}
    before = 0.0
    for end in ends:
        phases[end["phase"]] = end["seconds"] - before
        before = end["seconds"]
    first_step = sum(phases[phase] for phase in PHASES_TO_FIRST_STEP)
    return ColdStart(first_step, phases, whole, stages)
