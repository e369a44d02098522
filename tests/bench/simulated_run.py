"""A small run on this machine, killed and resumed, beside a simulation of the same run.

python -m tests.bench.simulated_run --images 320

Two worker processes draw the bundled model, each paced to four images a second, so that a busy
machine gives the same figures. One run is undisturbed; another is killed in the middle, with all
its processes, and resumed. The simulation knows the pace and when the run was killed. Starts are
not compared: seconds count from the first batch of each process.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.generate.worker_environments import choose_environments
from imagekiln.steps.generate.worker_pool import make_shards
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.sharding import Sharding
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.workflows.profiles.profile import Retries
from imagekiln.workflows.simulation.run import Fleet, SimulatedRun, simulate_run
from imagekiln.workflows.templates.pod_retries import retry_wait
from tests import jobs
from tests.bench.measure import machine, scratch_folder, table
from tests.bench.paced_check import SECONDS_PER_IMAGE

WORKERS = 2
SHARDS = 2  # one pod's
BATCH_IMAGES = 2
PART_IMAGES = 16
RETRIES = Retries(limit=1)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one process and its workers did, in seconds since the first batch, and in images."""

    seconds: float
    drawn: int
    committed: int


class Recorder(NoProgress):
    """Writes down when images are drawn and committed, and kills its process and all workers.

    That happens in the middle of a part, once so many images are committed; never with 0.
    """

    def __init__(self, path: Path, kill_after: int) -> None:
        """Write to a file that outlives the process."""
        self._path = path
        self._kill_after = kill_after
        self._committed = 0
        self._drawn_since_commit = 0

    def add_drawn(self, images: int) -> None:
        """Write the time down. It may be the last thing that this process does."""
        self._write("drawn", images)
        self._drawn_since_commit += images
        is_in_part = self._drawn_since_commit >= PART_IMAGES // 2
        if self._kill_after and self._committed >= self._kill_after and is_in_part:
            _kill_all()

    def add_committed(self, images: int) -> None:
        """Write the time down."""
        self._write("committed", images)
        self._committed += images
        self._drawn_since_commit = 0

    def _write(self, kind: str, images: int) -> None:
        with self._path.open("a") as file:
            file.write(f"{json.dumps([time.monotonic(), kind, images])}\n")


def _kill_all() -> None:
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def make_job(folder: Path, images: int) -> Job:
    """Two shards of the bundled model, quick to draw and slow to check."""
    prompts = {"prompt": [f"a red circle number {number}" for number in range(images)]}
    return jobs.job(
        folder,
        prompts,
        run_id="run",
        device="cpu",
        threads=1,
        defaults={"steps": 1},
        gates={"checks": [{"name": "pace", "entry": "tests.bench.paced_check:pace"}]},
        batch={"images": BATCH_IMAGES},
        part={"images": PART_IMAGES},
        shard={"images": images // SHARDS},
    )


def generate(folder: Path, images: int, kill_after: int) -> None:
    """Plan, or find the plan, and make what is missing."""
    planned = make_plan(make_job(folder, images))
    recorder = Recorder(folder / "events.jsonl", kill_after)
    environments = choose_environments(planned.plan.job, WORKERS)
    shards = range(len(planned.plan.shards))
    make_shards(open_store(planned.uri), planned.plan, shards, environments, recorder, Stop())


def run_attempt(folder: Path, images: int, kill_after: int = 0) -> Attempt:
    """Let a process of its own generate, and read what it wrote down."""
    folder.mkdir(exist_ok=True)
    path = folder / "events.jsonl"
    path.unlink(missing_ok=True)
    options = ["--folder", folder, "--images", images, "--kill-after", kill_after]
    command = [sys.executable, "-m", "tests.bench.simulated_run", *map(str, options)]
    subprocess.run(command, check=not kill_after)

    events = [json.loads(line) for line in path.read_text().splitlines()]
    first_batch_end = min(at for at, _, _ in events)
    last = max(at for at, _, _ in events)
    return Attempt(
        seconds=last - first_batch_end + BATCH_IMAGES * SECONDS_PER_IMAGE,
        drawn=sum(images for _, kind, images in events if kind == "drawn"),
        committed=sum(images for _, kind, images in events if kind == "committed"),
    )


def simulate(images: int, lifetimes: Sequence[float]) -> SimulatedRun:
    """The same run, whose nodes live so long, one after the other."""
    fleet = Fleet(
        gpus=WORKERS,
        seconds_per_image=SECONDS_PER_IMAGE,
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
        resumed = run_attempt(folder / "killed", images)

    simulated = simulate(images, [killed.seconds])
    simulated_seconds = simulated.seconds - retry_wait(RETRIES.limit, 1)
    simulated_repeated = simulated.gpu_time.repeated / SECONDS_PER_IMAGE
    repeated = killed.drawn + resumed.drawn - images
    rows = [
        ("seconds, undisturbed", undisturbed.seconds, simulate(images, []).seconds),
        ("seconds, killed and resumed", killed.seconds + resumed.seconds, simulated_seconds),
        ("images repeated", repeated, simulated_repeated),
        ("images in the end", killed.committed + resumed.committed, simulated.images),
    ]
    print(machine())
    print(f"{images} images, killed after {killed.seconds:.1f} s")
    cells = [(name, f"{real:.1f}", f"{model:.1f}") for name, real, model in rows]
    print(table(("", "real", "simulated"), cells))


def main() -> None:
    """Read the options; with a folder, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--kill-after", type=int, default=0)
    options = parser.parse_args()
    if options.folder is None:
        compare(options.images)
    else:
        generate(options.folder, options.images, options.kill_after)


if __name__ == "__main__":
    main()
