"""What each of many nights costs with `skip_existing`, as earlier nights add up under one output.

Example: python tests/bench/nights.py --nights 1 100 1000 --latency 0.02

Every night, the table of prompts has a few more rows. Pictures are drawn by no model. On some
nights the steps are measured: requests to the store, bytes, and seconds where each request takes
the latency of an object store.
"""

import argparse
import functools
import json
import os
import resource
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import Png
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.image import DrawnImage
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.registry import RunEntry, append_run_entry
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from tests import jobs
from tests.bench.measure import scratch_folder

OPERATIONS = ("read", "open", "exists", "create", "replace", "remove", "list_folder")
STEPS = ("plan", "aggregate", "runs", "gc")
HEADER = ("night", "step", "requests", "by operation", "MB read", "seconds", "CPU seconds", "MiB")
PROMPTS_A_NIGHT = 4
SIDE = 64


class Meter:
    """The requests to stores below a folder while it is on, each of which takes some seconds."""

    def __init__(self, root: Path, latency: float) -> None:
        """Count nothing yet."""
        self.requests: Counter[str] = Counter()
        self.bytes = 0
        self.is_on = False
        self._root = str(root)
        self._latency = latency
        self._lock = threading.Lock()

    def note(self, operation: str, name: str, result: object) -> None:
        """Count a request, if it is one to the output."""
        if not self.is_on or not name.startswith(self._root):
            return
        time.sleep(self._latency)
        with self._lock:
            self.requests[operation] += 1
            self.bytes += len(result) if isinstance(result, bytes) else 0

    def start(self) -> None:
        """Count from zero."""
        self.requests.clear()
        self.bytes = 0
        self.is_on = True


def metered(original: Callable[..., object], operation: str, meter: Meter) -> Callable[..., object]:
    """A store's method that is counted."""

    @functools.wraps(original)
    def call(store: LocalStore, key: str, *arguments: Any) -> object:  # noqa: ANN401  # those of any operation
        result = original(store, key, *arguments)
        meter.note(operation, store.uri_of(key), result)
        return result

    return call


@contextmanager
def metering(root: Path, latency: float) -> Iterator[Meter]:
    """Count the requests to stores below `root` while the block runs and the meter is on."""
    meter = Meter(root, latency)
    originals = {operation: getattr(LocalStore, operation) for operation in OPERATIONS}
    for operation, original in originals.items():
        setattr(LocalStore, operation, metered(original, operation, meter))
    try:
        yield meter
    finally:
        for operation, original in originals.items():
            setattr(LocalStore, operation, original)


def night_job(folder: Path, night: int, run_id: str) -> Job:
    """The job of a night, on a table with the rows of all nights so far."""
    rows = (night + 1) * PROMPTS_A_NIGHT
    columns = {"prompt": [f"a red circle number {row}" for row in range(rows)]}
    return jobs.job(
        folder,
        columns,
        name="nightly",
        run_id=run_id,
        defaults={"steps": 1, "width": SIDE, "height": SIDE, "seed": 7},
        skip_existing=True,
        device="cpu",
    )


def draw(run: PlanResult) -> None:
    """Commit every part of a planned run, one picture for all images."""
    store = open_store(run.uri)
    rgb = np.zeros((SIDE, SIDE, 3), np.uint8)
    rgb[0, 0] = 255
    part_format = format_of(run.plan.job)
    for number in range(len(run.plan.shards)):
        for part in read_shard(store, run.plan, number):
            images = [
                encode_drawn_image(DrawnImage(place, rgb), Png())
                for place in range(part.rows.num_rows)
            ]
            part_format.pack(part, images).commit(store)


def copy_night(first: Path, earlier: Sequence[str], name: str) -> None:
    """Leave a finished run like the first one, as of a night that nobody measures."""
    target = first.parent / name
    shutil.copytree(first, target, copy_function=os.link)
    plan = json.loads((first / PLAN_KEY).read_bytes())
    plan |= {"run_id": name, "existing_runs": list(earlier)}
    plan["job"]["run_id"] = name
    (target / PLAN_KEY).unlink()
    (target / PLAN_KEY).write_text(json.dumps(plan, indent=1))
    append_run_entry(str(first.parent), RunEntry(name, plan["job"]["name"]))


def measure(meter: Meter, night: int, name: str, step: Callable[[], object]) -> tuple[object, ...]:
    """Run a step, and what it took as the cells of a row."""
    meter.start()
    began = time.perf_counter()
    cpu_began = time.process_time()
    step()
    cpu = time.process_time() - cpu_began
    seconds = time.perf_counter() - began
    meter.is_on = False
    by_operation = ", ".join(f"{count} {name}" for name, count in sorted(meter.requests.items()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        night + 1,
        name,
        meter.requests.total(),
        by_operation,
        f"{meter.bytes / 1e6:.2f}",
        f"{seconds:.2f}",
        f"{cpu:.2f}",
        f"{peak:.0f}",
    )


def simulate(measured: Sequence[int], latency: float) -> Iterator[tuple[object, ...]]:
    """The rows of the nights that are measured. The others are copies of the first."""
    with scratch_folder() as scratch, metering(scratch / "out", latency) as meter:
        output = str(scratch / "out")
        names: list[str] = []
        for night in range(max(measured)):
            names.append(f"nightly-{night:012d}")
            if night and night + 1 not in measured:
                copy_night(scratch / "out" / names[0], names[:-1], names[-1])
                continue
            job = night_job(scratch, night, names[-1])
            yield measure(meter, night, "plan", functools.partial(make_plan, job))
            run = make_plan(job)
            draw(run)
            yield measure(meter, night, "aggregate", functools.partial(aggregate, run.uri))
            yield measure(meter, night, "runs", functools.partial(list_runs, output))
            yield measure(meter, night, "gc", functools.partial(gc, output))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, nargs="+", default=[1, 10, 100], help="to measure")
    parser.add_argument("--latency", type=float, default=0.02, help="seconds a request")
    options = parser.parse_args()
    for row in simulate(options.nights, options.latency):
        print(" | ".join(map(str, row)), flush=True)


if __name__ == "__main__":
    main()
