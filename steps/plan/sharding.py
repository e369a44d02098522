"""Where a run is cut: into parts of a fixed number of images, and shards of whole parts."""

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
    """Cut the images of `groups`, in their order. `seconds_per_work` is what a pixel and step takes on one GPU,
    `batch` the most images of a batch, of which the smaller ones are a part.

    Raises BadInput where shards are asked for in minutes and nobody knows what an image takes.
    """
    part = _round_up(job.part.images, batch)
    if job.shard.minutes is None:
        sizes = tuple(
            _cut_by_count(
                _count_group_images(groups),
                _round_up(job.shard.images or DEFAULT_SHARD_IMAGES, part),
            )
        )
    elif seconds_per_work is None:
        raise BadInput(
            "shard.minutes needs shard.seconds_per_image for this model; write it, or shard.images."
        )
    else:
        sizes = tuple(
            _cut_by_time(_part_costs(groups, part, seconds_per_work), job.shard.minutes * 60)
        )
    if len(sizes) > MAX_SHARDS:
        raise BadInput(
            f"the job makes {len(sizes)} shards; at most {MAX_SHARDS} fit. Make `shard` larger."
        )
    return Sharding(part, sizes)


def _cut_by_count(images: int, shard: int) -> Iterator[int]:
    yield from [shard] * (images // shard)
    if images % shard:
        yield images % shard


def _cut_by_time(parts: Iterator[tuple[int, float]], budget: float) -> Iterator[int]:
    images, spent = 0, 0.0
    for count, seconds in parts:
        if images and (spent + seconds > budget or images + count > MAX_SHARD_IMAGES):
            yield images
            images, spent = 0, 0.0
        images, spent = images + count, spent + seconds
    if images:
        yield images


def _part_costs(
    groups: tuple[ImageGroup, ...], part: int, seconds: float
) -> Iterator[tuple[int, float]]:
    """The images and the seconds of each part of `part` images, group after group."""
    images, spent = 0, 0.0
    for group in groups:
        left, each = group.images, seconds * work_per_image(group)
        while left:
            taken = min(left, part - images)
            images, spent, left = images + taken, spent + taken * each, left - taken
            if images == part:
                yield images, spent
                images, spent = 0, 0.0
    if images:
        yield images, spent


def work_per_image(group: ImageGroup) -> float:
    """What an image of the group costs, as pixels times steps."""
    return float(group.width * group.height * group.steps * (group.strength or 1.0))


def _count_group_images(groups: tuple[ImageGroup, ...]) -> int:
    return sum(group.images for group in groups)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
