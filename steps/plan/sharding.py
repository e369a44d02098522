"""Sizes of batches, parts and shards. A part has a fixed number of images, a shard whole parts."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.execution import DEFAULT_PART_IMAGES, MAX_SHARD_IMAGES
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import TuningEntry, forward_pixels, read_tuning_file
from imagekiln.steps.models.facts import ModelFacts, default_guidance, default_image_size
from imagekiln.steps.models.performance import TimeFigure, floor_power_of_two
from imagekiln.steps.plan.catalog import ImageGroup
from imagekiln.steps.plan.input_files import InputFile
from imagekiln.steps.runs.plan import BatchSize

DEFAULT_SHARD_IMAGES = 2000
# Default limits of a shard and a part if the time of an image is known, so that a stopped pod loses
# little work.
DEFAULT_SHARD_MINUTES = 30.0
DEFAULT_PART_SECONDS = 120.0
MIN_DEFAULT_SHARDS = 16  # default number of concurrent pods
MAX_SHARDS = 100_000
# Columns for which a row may need a different batch size.
TUNING_COLUMNS = {"width", "height", "guidance"}


@dataclass(frozen=True, slots=True)
class Sharding:
    """The number of images per part and in each shard. The last part of a shard may be short."""

    part_images: int
    shard_images: tuple[int, ...]


def cut_shards(
    job: Job,
    groups: tuple[ImageGroup, ...],
    seconds_per_work: float | None,
    batch: int,
    rest: tuple[ImageGroup, ...] | None = None,
) -> Sharding:
    """Cut the images of `groups`, in order, into parts and shards.

    `seconds_per_work` is the time per pixel and step on one GPU. The size of a part is a multiple
    of `batch`. `rest` are the groups without the sample, which becomes the first shard. Raises
    BadInput.
    """
    part = _choose_part_images(
        job,
        groups,
        seconds_per_work,
        batch,
    )
    sizes = tuple(
        _cut(
            job,
            groups if rest is None else rest,
            seconds_per_work,
            part,
        )
    )
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
    batch = lcm(batch, job.candidates)  # all candidates of an image belong to one part
    if job.part.images is not None:
        return _round_up(job.part.images, batch)
    default = _round_up(DEFAULT_PART_IMAGES, batch)
    if seconds_per_work is None or not groups:
        return default

    work = sum(group.images * work_per_image(group) for group in groups)
    seconds_per_batch = work * seconds_per_work / _count_images(groups) * batch
    batches = max(1, int(DEFAULT_PART_SECONDS / seconds_per_batch))
    return min(default, batches * batch)


def _cut(
    job: Job, groups: tuple[ImageGroup, ...], seconds_per_work: float | None, part: int
) -> Iterator[int]:
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
    """Yield the number of images and the seconds of each part."""
    ends = np.cumsum([0, *(group.images for group in groups)])
    work = np.cumsum([0.0, *(group.images * work_per_image(group) for group in groups)])
    starts = np.array([*range(0, ends[-1], part), ends[-1]])
    costs = np.diff(np.interp(starts, ends, seconds_per_work * work))
    return zip(np.diff(starts).tolist(), costs.tolist(), strict=True)


def _default_most_images(job: Job, images: int) -> int:
    """Return the default maximum number of images per shard.

    Figures in the table of models are from one GPU, and others may be ten times slower. Shards are
    therefore larger only with a measured time, and there are still enough for all pods.
    """
    if job.shard.seconds_per_image is None and job.batch.tuning is None:
        return DEFAULT_SHARD_IMAGES
    share = images // MIN_DEFAULT_SHARDS
    share = max(share, DEFAULT_SHARD_IMAGES)
    return min(share, MAX_SHARD_IMAGES)


def work_per_image(group: ImageGroup) -> float:
    """Return the work of an image of the group, in pixels times steps."""
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


@dataclass(frozen=True, slots=True)
class TuningEntries:
    """Entries of a tuning file for the job's model and GPU. `key` is part of the run's id."""

    entries: tuple[TuningEntry, ...] = ()
    key: str = ""

    def entry_for(self, width: int, height: int, *, guided: bool) -> TuningEntry | None:
        """Find the entry for a shape, for the next larger shape, or the largest entry."""
        pixels = forward_pixels(width, height, guided=guided)
        shape = (width, height, guided)
        candidates = [
            entry for entry in self.entries if (entry.width, entry.height, entry.guided) == shape
        ] or [entry for entry in self.entries if entry.forward_pixels >= pixels]
        # Two entries may have equal work, such as MIG slices of different sizes that have the same
        # name. The smaller batch fits in both.
        if candidates:
            return min(candidates, key=lambda entry: (entry.forward_pixels, entry.batch))
        return max(
            self.entries, key=lambda entry: (entry.forward_pixels, -entry.batch), default=None
        )

    def batch_size_for(self, width: int, height: int, *, guided: bool) -> int | None:
        """Return the batch size for a shape, with at most the pixels and work of a tuned batch."""
        entry = self.entry_for(width, height, guided=guided)
        if entry is None:
            return None
        work_ratio = entry.forward_pixels / forward_pixels(width, height, guided=guided)
        pixel_ratio = entry.width * entry.height / (width * height)
        return floor_power_of_two(entry.batch * min(1, work_ratio, pixel_ratio))


def load_tuning(job: Job, model: ModelFacts, files: tuple[InputFile, ...]) -> TuningEntries:
    """Load the job's tuning entries for its model and GPU. Raises BadInput, Missing, TryAgain."""
    if job.batch.tuning is None:
        return TuningEntries()
    name = job.batch.tuning
    file = read_tuning_file(name)
    wanted = (model.digest, job.model.dtype, job.speed)
    entries = tuple(
        entry for entry in file.entries if (entry.digest, entry.dtype, entry.speed) == wanted
    )
    gpus = sorted({entry.gpu for entry in entries})
    if len(gpus) > 1:
        raise BadInput(
            f"{name}: has entries for several GPUs ({', '.join(gpus)}). Tune each into a file of "
            "its own."
        )
    tuning = TuningEntries(entries)
    return replace(
        tuning,
        key=_tuning_key(
            job,
            model,
            tuning,
            files,
        ),
    )


def _tuning_key(
    job: Job, model: ModelFacts, tuning: TuningEntries, files: tuple[InputFile, ...]
) -> str:
    # If no row can set its size or guidance, one entry decides.
    entries = tuning.entries
    if not any(TUNING_COLUMNS & file.column_names.keys() for file in files):
        entry = _default_entry(job, model, tuning)
        entries = () if entry is None else (entry,)
    facts = [_entry_facts(job, entry) for entry in entries]
    if not any(facts):
        return ""
    return json.dumps(sorted(facts))


def _entry_facts(job: Job, entry: TuningEntry) -> list[object]:
    facts: list[object] = []
    if job.batch.images is None:
        facts.append(entry.batch)
    decides_shards = job.shard.images is None
    decides_parts = job.part.images is None
    is_overridden = job.shard.seconds_per_image is not None
    if (decides_shards or decides_parts) and not is_overridden:
        facts.extend([entry.seconds_per_image, entry.steps])
    return [entry.width, entry.height, entry.guided, *facts] if facts else []


def _default_entry(job: Job, model: ModelFacts, tuning: TuningEntries) -> TuningEntry | None:
    width, height = default_image_size(job, model)
    return tuning.entry_for(width, height, guided=_is_guided(job, model))


def tuned_figure(job: Job, model: ModelFacts, tuning: TuningEntries) -> TimeFigure | None:
    """Return the tuned time of an image with the job's defaults; None without an entry."""
    entry = _default_entry(job, model, tuning)
    if entry is None:
        return None
    seconds_per_forward_pixel = entry.seconds_per_image / entry.forward_pixels / entry.steps
    forwards = forward_pixels(1, 1, guided=_is_guided(job, model))
    source = f"measured by `imagekiln tune` on {entry.gpu}, {entry.when:%Y-%m-%d}"
    return TimeFigure(
        seconds_per_forward_pixel * forwards,
        source,
        device=entry.gpu,
    )


def _is_guided(job: Job, model: ModelFacts) -> bool:
    return model.own.call.is_guided(default_guidance(job, model))


def choose_batch_sizes(
    job: Job, model: ModelFacts, groups: Sequence[ImageGroup], tuning: TuningEntries
) -> tuple[BatchSize, ...]:
    """Choose the tuned batch size for each image size; none if the job sets `batch.images`."""
    if job.batch.images is not None:
        return ()
    guided: dict[tuple[int, int], bool] = {}
    for group in groups:  # one batch size per image size, for the group with the most work
        size = (group.width, group.height)
        guided[size] = guided.get(size, False) or model.own.call.is_guided(group.guidance)
    chosen = (
        (width, height, tuning.batch_size_for(width, height, guided=is_guided))
        for (width, height), is_guided in guided.items()
    )
    return tuple(BatchSize(width, height, images) for width, height, images in chosen if images)
