"""A small run on this machine, killed and resumed, beside a simulation of the same run.

python -m tests.bench.simulated_run --images 160

Two worker processes draw the bundled model, each paced to an image a second, so that a busy
machine changes little. One run is undisturbed, and shows the pace; another is killed in the middle
of parts, with all its processes, and resumed. Of it, the simulation learns only when that was.
Starts are not compared: seconds count from the first image of each process.
"""

import argparse
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.generate.worker_environments import choose_environments
from imagekiln.steps.generate.worker_pool import make_shards
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.sharding import Sharding
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.workflows.profiles.profile import Retries
from imagekiln.workflows.simulation.run import Fleet, SimulatedRun, simulate_run
from imagekiln.workflows.templates.pod_retries import retry_wait
from tests import jobs
from tests.bench.measure import machine, scratch_folder, table
from tests.bench.paced_check import LOG_VARIABLE, SECONDS_PER_IMAGE

WORKERS = 2
SHARDS = 2  # one pod's
BATCH_IMAGES = 2
PART_IMAGES = 16
RETRIES = Retries(limit=1)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one process and its workers did, in seconds since the first image began.

    `images` include those that were lost before they were committed.
    """

    seconds: float
    images: int


class Killer(NoProgress):
    """Kills its process and all workers in the middle of a part, once images are committed."""

    def __init__(self, after: int) -> None:
        """Kill after so many committed images; never with 0."""
        self._after = after
        self._committed = 0
        self._drawn_since_commit = 0

    def add_drawn(self, images: int) -> None:
        """Perhaps this is the last thing that the process does."""
        self._drawn_since_commit += images
        is_in_part = self._drawn_since_commit >= PART_IMAGES // 2
        if self._after and self._committed >= self._after and is_in_part:
            sys.stderr.write(f"Killing all after {self._committed} committed images.\n")
            _kill_all()

    def add_committed(self, images: int) -> None:
        """Count, and wait for the middle of the next part."""
        self._committed += images
        self._drawn_since_commit = 0


def _kill_all() -> None:
    own = str(os.getpid())
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            _, _, facts = (process / "stat").read_text(errors="replace").rpartition(")")
            if facts.split()[1:2] == [own]:  # its parent
                os.kill(int(process.name), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def make_job(folder: Path, images: int) -> Job:
    """Two shards of the bundled model, quick to draw and slow to check."""
    prompts = {"prompt": [f"a red circle number {number}" for number in range(images)]}
    return jobs.job(
        folder,
        prompts,
        run_id="run",
        device="cpu",
        defaults={"steps": 1},
        gates={"checks": [{"name": "pace", "entry": "tests.bench.paced_check:pace"}]},
        batch={"images": BATCH_IMAGES},
        part={"images": PART_IMAGES},
        shard={"images": images // SHARDS},
    )


def generate(folder: Path, images: int, kill_after: int) -> None:
    """Plan, or find the plan, and make what is missing."""
    planned = make_plan(make_job(folder, images))
    killer = Killer(kill_after)
    environments = choose_environments(planned.plan.job, WORKERS)
    shards = range(len(planned.plan.shards))
    make_shards(open_store(planned.uri), planned.plan, shards, environments, killer, Stop())


def run_attempt(folder: Path, images: int, kill_after: int = 0) -> Attempt:
    """Let a process of its own generate, and read what its workers wrote down."""
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    log.unlink(missing_ok=True)
    options = ["--folder", folder, "--images", images, "--kill-after", kill_after]
    command = [sys.executable, "-m", "tests.bench.simulated_run", *map(str, options)]
    environment = {**os.environ, LOG_VARIABLE: str(log)}
    subprocess.run(command, env=environment, check=not kill_after)

    times = sorted(map(float, log.read_text().split()))
    return Attempt(times[-1] - times[0] + SECONDS_PER_IMAGE, len(times))


def committed_images(folder: Path) -> int:
    """The images of all parts of the run."""
    store = open_store(str(folder / "out" / "run"))
    plan = load_plan(store)
    missing = 0
    for number in range(len(plan.shards)):
        parts = missing_parts(store, read_shard(store, plan, number))
        missing += sum(part.rows.num_rows for part in parts)
    return plan.counts.images - missing


def simulate(images: int, pace: float, lifetimes: Sequence[float]) -> SimulatedRun:
    """The same run, whose nodes live so long, one after the other."""
    fleet = Fleet(
        gpus=WORKERS,
        seconds_per_image=pace,
        load_seconds=0.0,
        node_seconds=0.0,
        idle_seconds=0.0,
        detection_seconds=0.0,
        pods_per_second=math.inf,
    )
    remaining = iter(lifetimes)
    sharding = Sharding(PART_IMAGES, (images // SHARDS,) * SHARDS)
    return simulate_run(sharding, fleet, RETRIES, WORKERS, lambda: next(remaining, math.inf))


def compare(images: int) -> None:
    """Run, simulate, and print both."""
    with scratch_folder() as folder:
        undisturbed = run_attempt(folder / "undisturbed", images)
        killed = run_attempt(folder / "killed", images, kill_after=images * 2 // 5)
        committed_before = committed_images(folder / "killed")
        resumed = run_attempt(folder / "killed", images)
        committed = committed_images(folder / "killed")

    pace = undisturbed.seconds * WORKERS / images
    simulated = simulate(images, pace, [killed.seconds])
    simulated_seconds = simulated.seconds - retry_wait(RETRIES.limit, 1)
    simulated_repeated = simulated.gpu_time.repeated / pace
    repeated = killed.images - committed_before
    print(f"{killed.images} images were drawn, {committed_before} of them committed.")
    rows = [
        ("seconds, undisturbed", undisturbed.seconds, simulate(images, pace, []).seconds),
        ("seconds, killed and resumed", killed.seconds + resumed.seconds, simulated_seconds),
        ("images repeated", repeated, simulated_repeated),
        ("images of both attempts", killed.images + resumed.images, images + simulated_repeated),
        ("images in the end", committed, simulated.images),
    ]
    print(machine())
    print(f"{images} images of {pace:.2f} s each, killed after {killed.seconds:.1f} s")
    cells = [(name, f"{real:.1f}", f"{model:.1f}") for name, real, model in rows]
    print(table(("", "real", "simulated"), cells))


def main() -> None:
    """Read the options; with a folder, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=160)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--kill-after", type=int, default=0)
    options = parser.parse_args()
    if options.folder is None:
        compare(options.images)
    else:
        generate(options.folder, options.images, options.kill_after)


if __name__ == "__main__":
    main()
