"""A job of so many images on so many GPUs: how long, for how much, and which limit it meets first.

What planning, the parts of a cluster and the store can take is compared with what the run asks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.passes import work_by_defaults
from imagekiln.steps.models.performance import TimeFigure
from imagekiln.steps.plan.catalog import ImageGroup
from imagekiln.steps.plan.run_time import HOW_TO_KNOW, count_images, default_figure
from imagekiln.steps.plan.sharding import MAX_SHARDS, Sharding, cut_shards
from imagekiln.steps.runs.plan import max_batch_size
from imagekiln.workflows.client.deadline import (
    HOURS_PER_DAY,
    MAX_PARALLELISM,
    PLANNING_MIB_SEVERAL_SHAPES,
    SPARE_DISK,
)
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.simulation import sizes
from imagekiln.workflows.simulation.run import (
    SECONDS_PER_HOUR,
    Fleet,
    SimulatedRun,
    constant_losses,
    simulate_run,
)
from imagekiln.workflows.templates.child_workflows import split_pods

MILLION = 1_000_000
MIB_PER_GIB = 1024
MAX_PUTS_PER_SECOND = 3500  # of one prefix of Amazon S3, which splits prefixes that are busy


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run is simulated under. `losses_per_hour` is a share of the nodes, from 0 to 1."""

    fleet: Fleet
    losses_per_hour: float = 0.0
    price_per_hour: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """What a run uses of one part of the design, of the most that it may.

    `grows_to` is how many images, or GPUs, reach the limit; None where more of them use no more.
    `remedy` says what to do then.
    """

    name: str
    used: float
    maximum: float
    unit: str
    remedy: str
    grows_to: float | None = None
    grows_with: Literal["images", "GPUs"] = "images"

    @property
    def share(self) -> float:
        """How much of it is used; above 1, the run does not work as it is."""
        return self.used / self.maximum


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated run of a job. Times are in seconds, `cost` in the currency of the price.

    `limits` come in the order in which a growing run would meet them.
    """

    images: int
    gpus: int
    shards: int
    parts: int
    pods: int
    workflows: int
    objects: int
    plan_bytes: float
    workflow_bytes: int
    planning_seconds: float
    aggregating_seconds: float
    run: SimulatedRun
    cost: float | None
    limits: tuple[Limit, ...]

    @property
    def seconds(self) -> float:
        """From the start of planning to the end of aggregation."""
        return self.planning_seconds + self.run.seconds + self.aggregating_seconds


def seconds_per_image(job: Job) -> float:
    """The time of an image of the job's defaults on one GPU. Raises BadInput where none is known.

    From where `estimate` has it: the job, its tuning file, or the table of models.
    """
    size, figure = default_figure(job)
    if figure is None:
        remedy = f"{HOW_TO_KNOW[0].upper()}{HOW_TO_KNOW[1:]}."
        raise BadInput(f"job {job.name}: the time of an image is unknown. {remedy}")
    return figure.seconds_per_work * work_by_defaults(job, size)


def count_job_images(job: Job) -> int:
    """The images of the job's prompts, as if all rows had the job's defaults.

    Raises BadInput where the rows cannot be counted, or there are none; Missing, TryAgain.
    """
    try:
        images = count_images(job)
    except BadInput as error:
        raise BadInput(f"{error} Pass --images.") from error
    if not images:
        raise BadInput(f"job {job.name}: its prompts have no rows. Pass --images.")
    return images


def simulate(job: Job, profile: Profile, images: int, conditions: Conditions) -> Simulation:
    """Play the job through as if it had so many images of its defaults. Reads no prompts.

    Raises BadInput where the time of an image is unknown, or the run has too many shards.
    """
    sharding = cut_images(job, images)
    workers = profile.gpu.count
    fleet = conditions.fleet
    lifetimes = constant_losses(conditions.losses_per_hour, conditions.seed)
    run = simulate_run(sharding, fleet, profile.retries, workers, lifetimes)
    pods = split_pods(len(sharding.shard_images), workers)
    price = conditions.price_per_hour
    simulation = Simulation(
        images=images,
        gpus=fleet.gpus,
        shards=len(sharding.shard_images),
        parts=sum(map(sharding.part_count, range(len(sharding.shard_images)))),
        pods=pods.pods,
        workflows=1 + pods.child_workflows,
        objects=sizes.count_objects(job, sharding),
        plan_bytes=sizes.plan_bytes(sharding),
        workflow_bytes=sizes.workflow_bytes(job, profile, pods.pods, run.pods),
        planning_seconds=images / sizes.PLANNED_ROWS_PER_SECOND,
        aggregating_seconds=images / sizes.AGGREGATED_IMAGES_PER_SECOND,
        run=run,
        cost=None if price is None else run.gpu_time.total / SECONDS_PER_HOUR * price,
        limits=(),
    )
    limits = sorted(_limits(simulation, profile, fleet), key=_share_of_limit, reverse=True)
    return replace(simulation, limits=tuple(limits))


def cut_images(job: Job, images: int) -> Sharding:
    """Cut so many images of the job's defaults as planning does."""
    (width, height), figure = default_figure(job)
    drawing = width * height * job.defaults.steps
    group = ImageGroup(
        width=width,
        height=height,
        steps=job.defaults.steps,
        guidance=job.defaults.guidance,
        sampler=job.defaults.sampler,
        images=images,
        pass_work=work_by_defaults(job, (width, height)) - drawing,
    )
    return cut_shards(job, (group,), _seconds_per_work(figure), max_batch_size(job, ()))


def _share_of_limit(limit: Limit) -> float:
    return limit.share


def _seconds_per_work(figure: TimeFigure | None) -> float | None:
    return None if figure is None else figure.seconds_per_work


def _limits(simulation: Simulation, profile: Profile, fleet: Fleet) -> Iterator[Limit]:
    """What the run uses of each part of the design."""
    yield from _planning_limits(simulation, profile)
    images = simulation.images
    days = simulation.seconds / SECONDS_PER_HOUR / HOURS_PER_DAY
    yield Limit(
        "shards",
        simulation.shards,
        MAX_SHARDS,
        "",
        "set a larger `shard.images`, or divide the prompts among several jobs",
        grows_to=images * MAX_SHARDS / simulation.shards,
    )
    yield Limit(
        "time of a workflow",
        days,
        profile.days,
        "days",
        f"set `days: {math.ceil(days) + 1}` in a profile of your own, or use more GPUs",
        grows_to=images * profile.days / days,
    )
    yield Limit(
        "size of a workflow",
        simulation.workflow_bytes / sizes.MIB,
        sizes.ARGO_MAX_WORKFLOW_BYTES / sizes.MIB,
        "MiB",
        "have Argo keep the status of its nodes in a database (nodeStatusOffLoad)",
    )
    yield from _rate_limits(simulation, profile, fleet)


def _planning_limits(simulation: Simulation, profile: Profile) -> Iterator[Limit]:
    """The memory and the disk of the one pod that plans."""
    rows = simulation.images / MILLION
    memory = sizes.PLANNING_MIB + rows * sizes.PLANNING_MIB_PER_MILLION_ROWS
    room = profile.steps.memory * MIB_PER_GIB - sizes.PLANNING_MIB
    yield Limit(
        "memory of planning",
        memory / MIB_PER_GIB,
        profile.steps.memory,
        "GiB",
        "set `steps: {memory: ...}` in a profile of your own",
        grows_to=room / sizes.PLANNING_MIB_PER_MILLION_ROWS * MILLION,
    )
    if profile.steps.disk is None:
        return
    disk = rows * PLANNING_MIB_SEVERAL_SHAPES / MIB_PER_GIB
    yield Limit(
        "disk of planning",
        disk,
        profile.steps.disk,
        "GiB",
        f"set `steps: {{disk: {math.ceil(disk * SPARE_DISK)}}}` in a profile of your own",
        grows_to=simulation.images * profile.steps.disk / disk,
    )


def _rate_limits(simulation: Simulation, profile: Profile, fleet: Fleet) -> Iterator[Limit]:
    """What grows with the number of GPUs."""
    run = simulation.run
    figures = (
        (
            "pods at once",
            fleet.gpus / profile.gpu.count,
            MAX_PARALLELISM,
            "",
            "use pods of several GPUs, such as profile gpu-4",
        ),
        (
            "new pods",
            run.pods / run.seconds,
            fleet.pods_per_second,
            "a second",
            "make shards longer (`shard.minutes`), or raise --qps and --burst of Argo's controller",
        ),
        (
            "new objects",
            simulation.objects / run.seconds,
            MAX_PUTS_PER_SECOND,
            "a second",
            "use format parquet, or larger parts (`part.images`)",
        ),
    )
    for name, used, maximum, unit, remedy in figures:
        gpus = fleet.gpus * maximum / used
        yield Limit(name, used, maximum, unit, remedy, grows_to=gpus, grows_with="GPUs")
