"""How a run is cut: into parts of a fixed number of images, and shards of whole parts."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

import numpy as np

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.execution import DEFAULT_PART_IMAGES, MAX_SHARD_IMAGES
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.catalog import ImageGroup

DEFAULT_SHARD_IMAGES = 2000
# Where it is known what an image takes, a shard and a part take at most this by default: what a
# stopped pod drops is soon made again.
DEFAULT_SHARD_MINUTES = 30.0
DEFAULT_PART_SECONDS = 120.0
MIN_DEFAULT_SHARDS = 16  # as many pods as work at once by default
MAX_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Sharding:
    """The number of images in each part (the last of a shard may be short) and in each shard."""

    part_images: int
    shard_images: tuple[int, ...]


def cut_shards(
    job: Job,
    groups: tuple[ImageGroup, ...],
    seconds_per_work: float | None,
    batch: int,
    rest: tuple[ImageGroup, ...] | None = None,
) -> Sharding:
    """Cut the images of `groups`, in their order.

    Where `rest` is what is left of them without a sample, the sample is the first shard.
    `seconds_per_work` is what a pixel and step takes on one GPU, `batch` the largest batch size, of
    which a part is a multiple. Raises BadInput where shards are to take minutes and there is no
    figure for what an image takes.
    """
    part = _choose_part_images(job, groups, seconds_per_work, batch)
    sizes = tuple(_cut(job, groups if rest is None else rest, seconds_per_work, part))
    if rest is not None:
        sampled = _count_images(groups) - _count_images(rest)
        sizes = (sampled, *sizes)
    if len(sizes) > MAX_SHARDS:
        raise BadInput(
            f"the job makes {len(sizes)} shards; at most {MAX_SHARDS} fit. Make `shard` larger."
        )
    return Sharding(part, sizes)


def _choose_part_images(
    job: Job, groups: tuple[ImageGroup, ...], seconds_per_work: float | None, batch: int
) -> int:
    """The images of a part: as the job says, or as many as take a while, in whole batches."""
    batch = lcm(batch, job.candidates)  # whoever makes a part decides among its candidates
    if job.part.images is not None:
        return _round_up(job.part.images, batch)
    default = _round_up(DEFAULT_PART_IMAGES, batch)
    if seconds_per_work is None or not groups:
        return default

    images = _count_images(groups)
    work = sum(group.images * work_per_image(group) for group in groups)
    seconds_per_image = work * seconds_per_work / images
    seconds_per_batch = seconds_per_image * batch
    batches = int(DEFAULT_PART_SECONDS / seconds_per_batch)
    batches = max(1, batches)
    return min(default, batches * batch)


def _cut(
    job: Job, groups: tuple[ImageGroup, ...], seconds_per_work: float | None, part: int
) -> Iterator[int]:
    """The number of images in each shard."""
    images = _count_images(groups)
    shard = job.shard.images
    minutes = job.shard.minutes

    if seconds_per_work is None and minutes is not None:
        raise BadInput(
            "shard.minutes needs shard.seconds_per_image for this model; write it, or shard.images."
        )
    if seconds_per_work is None or shard is not None:
        size = _round_up(shard or DEFAULT_SHARD_IMAGES, part)
        yield from (min(size, images - start) for start in range(0, images, size))
        return

    most_images = MAX_SHARD_IMAGES
    if minutes is None:
        minutes = DEFAULT_SHARD_MINUTES
        most_images = _round_up(_default_most_images(job, images), part)
    costs = _part_costs(groups, part, seconds_per_work)
    yield from _cut_by_time(costs, minutes * 60, most_images)


def _part_costs(
    groups: tuple[ImageGroup, ...], part: int, seconds_per_work: float
) -> Iterator[tuple[int, float]]:
    """The images and the seconds of each part of `part` images, in the order of groups."""
    images = [0, *(group.images for group in groups)]
    work = [0.0, *(group.images * work_per_image(group) for group in groups)]
    group_ends = np.cumsum(images)
    group_seconds = seconds_per_work * np.cumsum(work)
    total = sum(images)
    starts = np.array([*range(0, total, part), total])
    elapsed = np.interp(starts, group_ends, group_seconds)
    sizes = np.diff(starts)
    costs = np.diff(elapsed)
    return zip(sizes.tolist(), costs.tolist(), strict=True)


def _default_most_images(job: Job, images: int) -> int:
    """The most images of a shard, by default, however quickly they are made.

    The table of models is for one kind of GPU, and another may be ten times slower: only what was
    measured makes shards larger, and never so large that pods run out of shards.
    """
    if job.shard.seconds_per_image is None and job.batch.tuning is None:
        return DEFAULT_SHARD_IMAGES
    share = images // MIN_DEFAULT_SHARDS
    share = max(share, DEFAULT_SHARD_IMAGES)
    return min(share, MAX_SHARD_IMAGES)


def work_per_image(group: ImageGroup) -> float:
    """What an image of the group costs, as pixels times steps."""
    drawing = group.width * group.height * group.steps * (group.strength or 1.0)
    return float(drawing + group.pass_work)


def _cut_by_time(
    parts: Iterator[tuple[int, float]], budget: float, most_images: int
) -> Iterator[int]:
    shard_images = 0
    shard_seconds = 0.0
    for images, seconds in parts:
        over_time = shard_seconds + seconds > budget
        over_count = shard_images + images > most_images
        if shard_images and (over_time or over_count):
            yield shard_images
            shard_images = 0
            shard_seconds = 0.0
        shard_images += images
        shard_seconds += seconds
    if shard_images:
        yield shard_images


def _count_images(groups: tuple[ImageGroup, ...]) -> int:
    return sum(group.images for group in groups)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
