"""A run of 1, 10 and 100 million images on many GPUs, played through: hours, cost, first limits.

Example: python -m tests.bench.scale --gpus 64 256 1000 --workers 1 4 8 --losses 0.05

Shards, parts, workflows, retries and limits are the product's own. GPUs are a stand-in: all alike,
each image takes the same time, and a lost node loses the part that each of its workers is at.
"""

import argparse
import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.plan.catalog import ImageGroup
from imagekiln.steps.plan.sharding import MAX_SHARDS, Sharding, cut_shards
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.dag import MAX_PODS
from tests import jobs
from tests.bench.measure import table

HOUR = 3600
PROFILE = load_profile("spot")
SIDE, STEPS, BATCH, IMAGE_SECONDS = 1024, 30, 8, 1.39  # SDXL on an H100, computed
# Measured, with their conditions in docs/performance.md.
PLANNED_ROWS_PER_SECOND = 276_000
AGGREGATED_IMAGES_PER_SECOND = 252_000
PLANNING_MIB_PER_MILLION_ROWS = 531  # of disk, with several shapes
WORKFLOW_MIB = 0.37  # of 2,000 pods, as Argo compresses their nodes
MAX_PUTS_PER_SECOND = 3500  # of one prefix of Amazon S3
MAX_PODS_AT_ONCE, OBJECTS_PER_SHARD = 1000, 3
# Until a child workflow creates its first pod, and until a pod of a lost node is retried.
CHILD_SECONDS, RETRY_SECONDS = 10.0, 120.0
LOAD_SECONDS, NODE_SECONDS, IDLE_SECONDS = 60.0, 300.0, 600.0
PODS_PER_SECOND, PRICE = 5.0, 2.0


@dataclass(slots=True)
class Usage:
    """Seconds of the run, GPU-seconds by what they went into, attempts of pods and lost nodes."""

    seconds: float = 0.0
    starting: float = 0.0
    loading: float = 0.0
    drawing: float = 0.0
    repeated: float = 0.0
    idle: float = 0.0
    pods: int = 0
    lost: int = 0

    @property
    def gpu_seconds(self) -> float:
        """All that is paid for."""
        return self.starting + self.loading + self.drawing + self.repeated + self.idle


class Nodes:
    """The machines of a run, each for one pod: they start when needed, die, and end when idle."""

    def __init__(self, count: int, workers: int, losses: float, usage: Usage) -> None:
        """Start none yet. A machine is when it is free, its number, and when it dies."""
        self._losses = losses
        self._workers = workers
        self._usage = usage
        self._random = random.Random(0)  # noqa: S311  # nothing is kept secret by it
        self._places = [(0.0, number, -math.inf) for number in range(count)]

    @property
    def next_free(self) -> float:
        """When the next machine is free."""
        return self._places[0][0]

    def take(self, ready: float) -> tuple[float, int, float]:
        """When the first free machine takes a pod, its number, and when the machine dies."""
        free, number, dies = heapq.heappop(self._places)
        start = max(free, ready)
        idle = min(start, dies) - free
        if idle > 0:
            self._usage.idle += min(idle, IDLE_SECONDS) * self._workers
        if start < dies and idle <= IDLE_SECONDS:
            return start, number, dies
        self._usage.starting += NODE_SECONDS * self._workers
        start += NODE_SECONDS
        return start, number, start + self._draw_lifetime()

    def give_back(self, end: float, number: int, dies: float) -> None:
        """A machine is free from now on, or gone if it died."""
        heapq.heappush(self._places, (end, number, dies))

    def _draw_lifetime(self) -> float:
        if not self._losses:
            return math.inf
        return self._random.expovariate(-math.log1p(-self._losses) / HOUR)


def play(sharding: Sharding, gpus: int, workers: int, losses: float) -> Usage:
    """Let pods of so many workers make all shards, workflow after workflow."""
    usage = Usage()
    nodes = Nodes(gpus // workers, workers, losses, usage)
    shards = sharding.shard_images
    pods = [sum(shards[at : at + workers]) for at in range(0, len(shards), workers)]
    for first in range(0, len(pods), MAX_PODS):
        ready = usage.seconds + CHILD_SECONDS if first else 0.0
        waiting = [(ready, 0, float(images)) for images in pods[first : first + MAX_PODS]]
        retries: list[tuple[float, int, float]] = []
        created = ready
        while waiting or retries:
            # Argo walks through a workflow from its first shard: retried ones go first.
            is_retry = retries and (not waiting or retries[0][0] <= nodes.next_free)
            ready, attempt, images = heapq.heappop(retries) if is_retry else waiting.pop()
            created = max(created + 1 / PODS_PER_SECOND, ready)
            start, number, dies = nodes.take(created)
            end, left = draw(usage, sharding.part_images, images, workers, start, dies)
            nodes.give_back(end, number, dies)
            usage.seconds = max(usage.seconds, end)
            if left and attempt < PROFILE.retries.limit:
                again = end + RETRY_SECONDS
                heapq.heappush(retries, (again, attempt + 1, left))
    return usage


def draw(
    usage: Usage, part: int, images: float, workers: int, start: float, dies: float
) -> tuple[float, float]:
    """When an attempt at a pod ends, and the images that are left if its node dies before."""
    usage.pods += 1
    seconds = images * IMAGE_SECONDS / workers  # each worker's
    end = start + LOAD_SECONDS + seconds
    if end <= dies:
        usage.loading += LOAD_SECONDS * workers
        usage.drawing += seconds * workers
        return end, 0
    usage.lost += 1
    drawn = max(0.0, dies - start - LOAD_SECONDS)
    part_seconds = part * IMAGE_SECONDS
    committed = drawn // part_seconds * part_seconds
    usage.loading += min(dies - start, LOAD_SECONDS) * workers
    usage.drawing += committed * workers
    usage.repeated += (drawn - committed) * workers
    return dies, images - committed * workers / IMAGE_SECONDS


def cut(images: int) -> Sharding:
    """Cut so many images as planning does."""
    job = jobs.job(Path("unused"), None, prompts="s3://prompts/*.parquet", output="s3://images")
    group = ImageGroup(SIDE, SIDE, STEPS, guidance=5.0, sampler="", images=images)
    return cut_shards(job, (group,), IMAGE_SECONDS / (SIDE * SIDE * STEPS), BATCH)


def first_limits(sharding: Sharding, usage: Usage, gpus: int, workers: int) -> Iterator[str]:
    """The shares of limits that a run uses, the nearest first."""
    sizes = sharding.shard_images
    shards = len(sizes)
    objects = OBJECTS_PER_SHARD * shards + sum(-(-size // sharding.part_images) for size in sizes)
    disk = sum(sizes) / 10**6 * PLANNING_MIB_PER_MILLION_ROWS / 1024
    shares = {
        "disk of planning": disk / (PROFILE.steps.disk or math.inf),
        "days of a workflow": usage.seconds / HOUR / 24 / PROFILE.days,
        "shards": shards / MAX_SHARDS,
        "size of a workflow": min(1.0, shards / workers / MAX_PODS) * WORKFLOW_MIB,
        "pods at once": gpus / workers / MAX_PODS_AT_ONCE,
        "new pods a second": usage.pods / usage.seconds / PODS_PER_SECOND,
        "new objects a second": objects / usage.seconds / MAX_PUTS_PER_SECOND,
    }
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        yield f"{name} {share:.0%}"


def cells(images: int, gpus: int, workers: int, losses: float) -> tuple[str, ...]:
    """A line of the table: a run, what it takes, and its nearest limits."""
    sharding = cut(images)
    usage = play(sharding, gpus, workers, losses)
    usage.seconds += images / PLANNED_ROWS_PER_SECOND + images / AGGREGATED_IMAGES_PER_SECOND
    hours = usage.gpu_seconds / HOUR
    parts = (usage.drawing, usage.loading, usage.starting, usage.idle, usage.repeated)
    shares = (f"{part / usage.gpu_seconds:.1%}" for part in parts)
    limits = [*first_limits(sharding, usage, gpus, workers)][:3]
    counts = (images, gpus, workers, len(sharding.shard_images), usage.lost)
    totals = (usage.seconds / HOUR, hours, hours * PRICE)
    return (*map("{:,}".format, counts), *map("{:,.0f}".format, totals), *shares, ", ".join(limits))


def main() -> None:
    """Play all combinations through, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[10**6, 10**7, 10**8])
    parser.add_argument("--gpus", type=int, nargs="+", default=[64, 256, 1000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1], help="GPUs of a pod")
    parser.add_argument("--losses", type=float, default=0.05, help="share of nodes, an hour")
    options = parser.parse_args()
    header = "images GPUs workers shards lost hours GPU-hours cost drawing loading starting idle"
    runs = [(i, g, w) for i in options.images for g in options.gpus for w in options.workers]
    lines = [cells(*run, options.losses) for run in runs]
    print(table((*header.split(), "repeated", "nearest limits"), lines))


if __name__ == "__main__":
    main()
