"""The batch sizes that planning freezes: the job's number, else what was tuned."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import (
    TuningEntry,
    TuningFile,
    forward_pixels,
    read_tuning_file,
    throughput_settings,
)
from imagekiln.steps.models.facts import ModelFacts, default_image_size, load_model_facts
from imagekiln.steps.models.families import family_of
from imagekiln.steps.models.performance import floor_power_of_two
from imagekiln.steps.plan.catalog import ImageGroup
from imagekiln.steps.plan.input_files import SourceFile, read_footers
from imagekiln.steps.runs.plan import BatchSize

BATCH_SHAPE_COLUMNS = {
    "width",
    "height",
    "guidance",
}  # the columns by which rows may need other batches than the defaults


@dataclass(frozen=True, slots=True)
class TuningEntries:
    """The entries of a job's tuning file for its model and GPU."""

    entries: tuple[TuningEntry, ...] = ()

    def entry_for(self, width: int, height: int, *, guided: bool) -> TuningEntry | None:
        """The entry for a shape, or else for the next that asks more of the device, or else the one that asks most."""
        wanted = forward_pixels(width, height, guided=guided)
        exact = [
            each
            for each in self.entries
            if (each.width, each.height, each.guided) == (width, height, guided)
        ]
        enough = exact or [each for each in self.entries if each.forward_pixels >= wanted]
        # Of two that ask as much, such as those of a GPU's slices by the same name, the smaller batch fits in both.
        if enough:
            return min(enough, key=lambda each: (each.forward_pixels, each.batch))
        return max(self.entries, key=lambda each: (each.forward_pixels, -each.batch), default=None)

    def batch_size_for(self, width: int, height: int, *, guided: bool) -> int | None:
        """The batch for a shape: never more pixels in one, or more work, than in a batch that was measured."""
        entry = self.entry_for(width, height, guided=guided)
        if entry is None:
            return None
        work, pixels = (
            entry.forward_pixels / forward_pixels(width, height, guided=guided),
            entry.width * entry.height / (width * height),
        )
        return floor_power_of_two(entry.batch * min(1, work, pixels))


NO_TUNING = TuningEntries()


def load_tuning(job: Job, digest: Callable[[], str]) -> TuningEntries:
    """What is known of a job's batches before its rows are read.

    `digest` identifies its model, and is asked only where there is a tuning file: hashing weights takes a while.
    Raises BadInput, Missing, TryAgain.
    """
    if job.batch.tuning is None:
        return NO_TUNING
    files = digest()
    found = [
        each for each in _read_tuning(job.batch.tuning).entries if _entry_matches(each, job, files)
    ]
    gpus = sorted({each.gpu for each in found})
    if job.batch.gpu is None and len(gpus) > 1:
        named = ", ".join(gpus)
        raise BadInput(
            f"{job.batch.tuning}: has entries for several GPUs ({named}). Name one as batch.gpu."
        )
    gpu = job.batch.gpu or next(iter(gpus), None)
    return TuningEntries(tuple(each for each in found if each.gpu == gpu))


def _read_tuning(name: str) -> TuningFile:
    try:
        return read_tuning_file(name)
    except Missing as error:
        raise Missing(
            f"{name}: there is no such tuning file. Run `imagekiln tune`, or correct batch.tuning."
        ) from error


def _entry_matches(entry: TuningEntry, job: Job, digest: str) -> bool:
    return (entry.digest, entry.dtype, throughput_settings(entry.speed)) == (
        digest,
        job.model.dtype,
        throughput_settings(job.speed),
    )


def tuning_key(job: Job, tuned: TuningEntries, found: tuple[SourceFile, ...]) -> str:
    """What of the tuning file decides the plan, as a text for the run's id: empty where nothing does.

    Where no row can have a size or guidance of its own, that is one entry.
    """
    entries: Iterable[TuningEntry | None] = tuned.entries
    if entries and not any(
        BATCH_SHAPE_COLUMNS & file.column_names.keys()
        for file in read_footers(found, job.columns, job.carry)
    ):
        entries = [default_tuning_entry(job, load_model_facts(job.model), tuned)]
    facts = [_entry_facts(job, each) for each in entries if each is not None]
    return json.dumps(sorted(facts)) if any(facts) else ""


def _entry_facts(job: Job, entry: TuningEntry) -> list[object]:
    shape: list[object] = [entry.width, entry.height, entry.guided]
    batch = [] if job.batch.images is not None else [entry.batch]
    timed = job.shard.minutes is not None and job.shard.seconds_per_image is None
    seconds = [entry.seconds_per_image, entry.steps] if timed else []
    return [*shape, *batch, *seconds] if batch or seconds else []


def default_tuning_entry(job: Job, facts: ModelFacts, tuned: TuningEntries) -> TuningEntry | None:
    """The entry for an image that is as the job's defaults say."""
    guided = family_of(facts.pipeline).uses_guidance(job.defaults.guidance)
    return tuned.entry_for(*default_image_size(job, facts), guided=guided)


def tuned_seconds_per_work(job: Job, facts: ModelFacts, tuned: TuningEntries) -> float | None:
    """GPU seconds for each pixel and step of an image that is as the job's defaults say, as they were measured."""
    entry = default_tuning_entry(job, facts, tuned)
    if entry is None:
        return None
    guided = family_of(facts.pipeline).uses_guidance(job.defaults.guidance)
    return (
        entry.seconds_per_image
        / entry.forward_pixels
        / entry.steps
        * forward_pixels(1, 1, guided=guided)
    )


def choose_batch_sizes(
    job: Job, facts: ModelFacts, groups: Sequence[ImageGroup], tuned: TuningEntries
) -> tuple[BatchSize, ...]:
    """The batch for each size of the job's images; none where the job says the number, or nobody knows any."""
    if job.batch.images is not None:
        return ()
    guided: dict[tuple[int, int], bool] = {}
    for group in groups:  # images of one size have one batch: that of the most work among them
        size = group.width, group.height
        guided[size] = guided.get(size, False) or family_of(facts.pipeline).uses_guidance(
            group.guidance
        )
    found = (
        BatchSize(*size, images)
        for size in guided
        if (images := tuned.batch_size_for(*size, guided=guided[size]))
    )
    return tuple(found)
