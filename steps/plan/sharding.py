"""How a run is cut: into parts of a fixed number of images, and shards of whole parts."""

from collections.abc import Iterator
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import MAX_SHARD_IMAGES, Job
from imagekiln.steps.plan.catalog import ImageGroup

DEFAULT_SHARD_IMAGES = 2000
MAX_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Sharding:
    """The number of images in each part (the last of a shard may be short) and in each shard."""

    part_images: int
    shard_images: tuple[int, ...]


def cut_shards(
    job: Job, groups: tuple[ImageGroup, ...], seconds_per_work: float | None, batch: int
) -> Sharding:
    """Cut the images of `groups`, in their order.

    `seconds_per_work` is what a pixel and step takes on one GPU, `batch` the largest batch size, of
    which a part is a multiple. Raises BadInput where shards are to take minutes and there is no
    figure for what an image takes.
    """
    part = _round_up(job.part.images, batch)
    if job.shard.minutes is None:
        images = sum(group.images for group in groups)
        shard = _round_up(job.shard.images or DEFAULT_SHARD_IMAGES, part)
        sizes = tuple(_cut_by_count(images, shard))
    elif seconds_per_work is None:
        raise BadInput(
            "shard.minutes needs shard.seconds_per_image for this model; write it, or shard.images."
        )
    else:
        costs = _part_costs(groups, part, seconds_per_work)
        sizes = tuple(_cut_by_time(costs, job.shard.minutes * 60))
    if len(sizes) > MAX_SHARDS:
        raise BadInput(
            f"the job makes {len(sizes)} shards; at most {MAX_SHARDS} fit. Make `shard` larger."
        )
    return Sharding(part, sizes)


def work_per_image(group: ImageGroup) -> float:
    """What an image of the group costs, as pixels times steps."""
    return float(group.width * group.height * group.steps * (group.strength or 1.0))


def _cut_by_count(images: int, shard: int) -> Iterator[int]:
    yield from [shard] * (images // shard)
    if images % shard:
        yield images % shard


def _cut_by_time(parts: Iterator[tuple[int, float]], budget: float) -> Iterator[int]:
    shard_images = 0
    shard_seconds = 0.0
    for images, seconds in parts:
        over_time = shard_seconds + seconds > budget
        over_count = shard_images + images > MAX_SHARD_IMAGES
        if shard_images and (over_time or over_count):
            yield shard_images
            shard_images = 0
            shard_seconds = 0.0
        shard_images += images
        shard_seconds += seconds
    if shard_images:
        yield shard_images


def _part_costs(
    groups: tuple[ImageGroup, ...], part: int, seconds_per_work: float
) -> Iterator[tuple[int, float]]:
    """The images and the seconds of each part of `part` images, group after group."""
    part_images = 0
    part_seconds = 0.0
    for group in groups:
        seconds_per_image = seconds_per_work * work_per_image(group)
        remaining = group.images
        while remaining:
            images = min(remaining, part - part_images)
            remaining -= images
            part_images += images
            part_seconds += images * seconds_per_image
            if part_images == part:
                yield part_images, part_seconds
                part_images = 0
                part_seconds = 0.0
    if part_images:
        yield part_images, part_seconds


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
