"""A run whose processes are killed again and again, and what it must be in the end."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from imagekiln.steps import names, shard, tables
from imagekiln.steps.aggregate import aggregate
from imagekiln.steps.job import Job
from imagekiln.steps.planning import Planned, make_plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.verify import Verified, verify
from tests import jobs
from tests.processes import Child, make_shard
from tests.texts import chance

AT_ONCE = 2  # processes on the one shard
PART = 4


@dataclass(frozen=True, slots=True)
class Dataset:
    """All that a finished run promises to be: each part's bytes, each image's row, and what `verify` read."""

    parts: dict[str, bytes]
    manifest: pa.Table
    verified: Verified


@dataclass(slots=True)
class Kills:
    """How many processes were killed at work, and how many of them when some parts were there, but not all."""

    all: int = 0
    between: int = 0


def job(scratch: Path, output: str, images: int, **settings: object) -> Job:
    """One shard, in parts of four quick images."""
    prompts = {"prompt": [f"a red circle number {number}" for number in range(images)]}
    cut: dict[str, object] = {"defaults": {"steps": 1}, "batch": {"images": PART}, "part": {"images": PART}}
    return jobs.job(scratch, prompts, output=output, run_id="run", device="cpu", threads=1, **(cut | settings))


def planned(scratch: Path, output: str, images: int, **settings: object) -> Planned:
    """Plan such a job."""
    return make_plan(job(scratch, output, images, **settings))


def undisturbed(there: Planned) -> Dataset:
    """Make the run in one process that nobody kills."""
    if Child(make_shard, there.uri, 0).join() != 0:
        raise RuntimeError("the undisturbed run failed")
    return finished(there)


def finished(there: Planned) -> Dataset:
    """Aggregate and verify the run, and read all of it. Raises where anything is missing or wrong."""
    aggregate(there.uri)
    store = open_store(there.uri)
    parts = {part.key: store.read(part.key) for part in shard.read(store, there.plan, 0)}
    manifest = tables.read(store, names.manifest(0))
    return Dataset(parts, manifest, verify(there.uri))


def killed(there: Planned, least: int, seed: int) -> Kills:
    """Make the run with two processes at a time, killed at random moments; not any more after `least` kills between.

    Where the run is all but made before that, there are fewer.
    """
    store, kills, dice = open_store(there.uri), Kills(), chance(seed)
    wanted = shard.read(store, there.plan, 0)
    left, patience = len(wanted), 0.15  # seconds that an attempt lives, on average
    while kills.between < least and left > 1:
        died = _attempt(there.uri, dice, patience)
        before, left = left, len(shard.missing(store, wanted))
        kills.all += died
        kills.between += died if 0 < left < len(wanted) else 0
        # About a part for each attempt, whatever the machine: then kills come at every moment of a part's making.
        patience *= 1.4 if left == before else 0.8 ** (before - left - 1)
    for child in [Child(make_shard, there.uri, 0) for _ in range(AT_ONCE)]:
        if child.join() != 0:
            raise RuntimeError("a process that nobody killed failed")
    return kills


def _attempt(uri: str, dice: random.Random, patience: float) -> int:
    """Start processes on the shard, kill them one after the other; how many were still at work."""
    children = [Child(make_shard, uri, 0) for _ in range(AT_ONCE)]
    for child in children:
        child.wait_until_begun()
    time.sleep(dice.uniform(0, 2 * patience))
    died = 0
    for child in children:
        died += child.kill()
        time.sleep(dice.choice((0.0, dice.uniform(0, 0.3))))
    return died
