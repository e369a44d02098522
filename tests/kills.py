"""A run whose processes are killed again and again, and what it must be in the end."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.verify import VerifyResult, verify
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.run import open_run, read_shard_manifest
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import jobs
from tests.processes import Child, make_little_of_shard, make_shard
from tests.texts import chance

AT_ONCE = 2  # processes on the one shard
PART = 4
PART_SECONDS = 0.3  # what a part takes, about


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a finished run promises: the bytes of its parts, its manifest, and a clean `verify`."""

    parts: dict[str, bytes]
    manifest: pa.Table
    verified: VerifyResult


@dataclass(slots=True)
class Kills:
    """How many processes were killed at work, and how many of them when some parts existed."""

    all: int = 0
    between: int = 0


def job(scratch: Path, output: str, images: int, **settings: object) -> Job:
    """A job of one shard, in parts of four quick images."""
    prompts = {"prompt": [f"a red circle number {number}" for number in range(images)]}
    sizes: dict[str, object] = {
        "defaults": {"steps": 1},
        "batch": {"images": PART},
        "part": {"images": PART},
    }
    return jobs.job(
        scratch, prompts, output=output, run_id="run", device="cpu", **(sizes | settings)
    )


def plan_run(scratch: Path, output: str, images: int, **settings: object) -> PlanResult:
    """Plan such a job."""
    return make_plan(job(scratch, output, images, **settings))


def make_undisturbed(run: PlanResult) -> Dataset:
    """Make the run in one process that nobody kills."""
    if Child(make_shard, run.uri, 0).join() != 0:
        raise RuntimeError("the undisturbed run failed")
    return finish_run(run)


def finish_run(run: PlanResult) -> Dataset:
    """Aggregate, verify and read the run. Raises if anything is missing or wrong."""
    aggregate(run.uri)
    store = open_store(run.uri)
    parts = {part.key: store.read(part.key) for part in read_shard(store, run.plan, 0)}
    manifest = read_shard_manifest(open_run(run.uri), 0)
    return Dataset(parts, manifest, verify(run.uri))


def make_with_kills(run: PlanResult, min_between: int, seed: int) -> Kills:
    """Make the run with two processes at a time, each killed at a random moment.

    The killing ends after `min_between` kills with some parts written, or when one is missing.
    """
    store = open_store(run.uri)
    kills = Kills()
    dice = chance(seed)
    parts = read_shard(store, run.plan, 0)
    missing = list(parts)
    while kills.between < min_between and len(missing) > 1:
        # One attempt in five dies while it loads the model, the others soon after writing a part.
        part = missing[0] if dice.random() < 0.8 else None
        died = _attempt(run, part, dice)
        missing = missing_parts(store, parts)
        kills.all += died
        kills.between += died if 0 < len(missing) < len(parts) else 0
    for child in [Child(make_shard, run.uri, 0) for _ in range(AT_ONCE)]:
        if child.join() != 0:
            raise RuntimeError("a process that nobody killed failed")
    return kills


def _attempt(run: PlanResult, part: Part | None, dice: random.Random) -> int:
    """Start processes on the shard and kill them in turn. Returns how many were still at work."""
    children = [Child(make_little_of_shard, run.uri, 0) for _ in range(AT_ONCE)]
    for child in children:
        child.wait_until_begun()
    if part is not None:
        _wait_for(open_store(run.uri), part)
    died = 0
    for child in children:
        time.sleep(dice.choice((0.0, dice.uniform(0, PART_SECONDS))))
        died += child.kill()
    return died


def _wait_for(store: Store, part: Part) -> None:
    until = time.monotonic() + 60
    while not store.exists(part.key):
        if time.monotonic() > until:
            raise TimeoutError(f"{part.key} is not made")
        time.sleep(0.01)
