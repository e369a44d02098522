"""How long a run's last shards take where one process is slow, with and without help by the others.

    python -m tests.bench.tail --folder s3://bucket/tail

Processes, one for each shard as on a cluster, have a device that computes nothing and takes a fixed
time for a batch. The first is stopped and resumed again and again (SIGSTOP, SIGCONT), so that it
gets a share of the time.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.job.execution import BatchSettings, PartSettings, ShardSettings
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.job.rows import RowDefaults
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.attempts import merge_stats, read_attempts, read_begun
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

SIDE = 64
BATCH = 4
PART = 8
CYCLE_SECONDS = 2.0
SLICE_SECONDS = 0.05


def work(uri: str, shard: int, seconds: float, helps: bool, ready: Barrier) -> None:
    """Make a shard as a pod does, with a device that takes so many seconds for a batch."""
    from imagekiln.steps.generate.diffusion.denoiser import Denoiser
    from imagekiln.steps.generate.meter import meter_attempt
    from imagekiln.steps.generate.step import generate_and_help
    from imagekiln.steps.runs.image import DrawnImage, ImageRow
    from imagekiln.steps.runs.run import open_run
    from imagekiln.steps.runtime.progress import NoProgress
    from imagekiln.steps.runtime.signals import Stop
    from tests import models

    class SlowDevice(Denoiser):
        def draw(
            self,
            rows: Sequence[ImageRow],
            size: int,  # noqa: ARG002
            check: Callable[[], None],  # noqa: ARG002
        ) -> Sequence[DrawnImage]:
            for _ in range(round(seconds / SLICE_SECONDS)):  # while stopped, none of them passes
                time.sleep(SLICE_SECONDS)
            return [DrawnImage(row.index_in_part, _noise(row.image_id)) for row in rows]

    run = open_run(uri)
    device = SlowDevice(models.pipe("sd"))
    stop = Stop()
    ready.wait()
    with meter_attempt(run, run.plan, NoProgress(), stop, shards=[shard]) as meter:
        generate_and_help(run.store, run.plan, shard, lambda: device, meter, stop, helps=helps)


def _noise(image_id: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    numbers = np.random.default_rng(int(image_id, 16))
    return numbers.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def slow_down(process: BaseProcess, share: float, has_ended: Callable[[], bool]) -> None:
    """Let a process run for a share of the time, until its work has ended."""
    dice = random.Random(7)  # noqa: S311  # nothing secret
    pid = process.pid or 0
    while process.is_alive() and not has_ended():
        time.sleep(share * CYCLE_SECONDS * dice.uniform(0.5, 1.5))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep((1 - share) * CYCLE_SECONDS)
            os.kill(pid, signal.SIGCONT)


def measure(uri: str, plan: Plan, seconds: float, share: float, helps: bool) -> None:
    """Have all processes make their shards at once, the first of them slowed down."""
    context = get_context("spawn")
    shards = range(len(plan.shards))
    ready = context.Barrier(len(shards) + 1)
    processes = [
        context.Process(target=work, args=(uri, shard, seconds, helps, ready)) for shard in shards
    ]
    for process in processes:
        process.start()
    ready.wait()  # starts are not what is measured
    store = open_store(uri)
    first = read_shard(store, plan, 0)[0]
    while not store.exists(first.key):
        time.sleep(0.1)
    slow_down(processes[0], share, lambda: read_begun(store, plan, {0}).get(0, False))
    for process in processes:
        process.join()


def read_stats(store: Store) -> list[ShardStats]:
    """The statistics of all shards."""
    return merge_stats(read_attempts(store))


def describe(stats: list[ShardStats]) -> str:
    """What processes committed, dropped, and when the work of each ended."""
    begun = min(shard.started_at or 0.0 for shard in stats)
    ends = ", ".join(f"{(shard.ended_at or 0.0) - begun:.0f}" for shard in stats)
    images = sum(shard.images for shard in stats)
    helped = sum(shard.helped_images for shard in stats)
    repeated = sum(shard.repeated_images for shard in stats)
    return (
        f"{images} images committed, {helped} of them for others; {repeated} dropped; the "
        f"processes ended after {ends} s"
    )


def plan_run(output: str, folder: str, images: int, processes: int) -> tuple[str, Plan]:
    """A run of one shard for each process."""
    prompts = f"{folder}/prompts.parquet"
    pq.write_table(pa.table({"prompt": [f"noise {number}" for number in range(images)]}), prompts)
    job = Job(
        name="tail",
        run_id="run",
        prompts=prompts,
        output=output,
        model=ModelSettings(id="bundled:shapes", dtype="float32"),
        defaults=RowDefaults(width=SIDE, height=SIDE),
        batch=BatchSettings(images=BATCH),
        part=PartSettings(images=PART),
        shard=ShardSettings(images=images // processes),
    )
    result = make_plan(job)
    return result.uri, result.plan


@click.command()
@click.option("--folder", default="", help="Where the runs go. Default: a folder of this disk.")
@click.option("--images", default=160, show_default=True, help="Images in the job.")
@click.option("--processes", default=4, show_default=True, help="Processes, a shard for each.")
@click.option("--seconds", default=2.0, show_default=True, help="What a batch of four takes.")
@click.option("--share", default=0.1, show_default=True, help="The slow one's share of the time.")
def main(folder: str, images: int, processes: int, seconds: float, share: float) -> None:
    """Print the seconds of a run with and without help, and compare the bytes of all parts."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1790000000")
    contents = []
    for helps in (False, True):
        with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as scratch:
            output = f"{folder or scratch}/{'with' if helps else 'without'}-help"
            uri, plan = plan_run(output, scratch, images, processes)
            measure(uri, plan, seconds, share, helps)
            store = open_store(uri)
            keys = [
                part.key for shard in range(processes) for part in read_shard(store, plan, shard)
            ]
            contents.append({key: store.read(key) for key in keys})
            stats = read_stats(store)
            aggregate(uri)
            verified = verify(uri).ok
        label = "with help" if helps else "alone"
        click.echo(f"{label:10} {describe(stats)}; {verified} verified")
    click.echo(f"equal bytes: {contents[0] == contents[1]}")


if __name__ == "__main__":
    sys.exit(main())
