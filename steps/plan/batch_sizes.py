"""The batch sizes that planning freezes: the job's number, or else what was tuned."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import TuningEntry, forward_pixels, read_tuning_file
from imagekiln.steps.models.facts import ModelFacts, default_guidance, default_image_size
from imagekiln.steps.models.performance import TimeFigure, floor_power_of_two
from imagekiln.steps.plan.catalog import ImageGroup
from imagekiln.steps.plan.input_files import InputFile
from imagekiln.steps.runs.plan import BatchSize

# The columns by which rows may need other batches than the defaults.
TUNING_COLUMNS = {"width", "height", "guidance"}


@dataclass(frozen=True, slots=True)
class TuningEntries:
    """The entries of a job's tuning file for its model and GPU.

    `key` is what of them decides the plan, as text for the run's id; empty where nothing does.
    """

    entries: tuple[TuningEntry, ...] = ()
    key: str = ""

    def entry_for(self, width: int, height: int, *, guided: bool) -> TuningEntry | None:
        """The entry for a shape, or else for the next that asks more of the device.

        Where none asks more, the one that asks most.
        """
        pixels = forward_pixels(width, height, guided=guided)
        shape = (width, height, guided)
        candidates = [
            entry for entry in self.entries if (entry.width, entry.height, entry.guided) == shape
        ] or [entry for entry in self.entries if entry.forward_pixels >= pixels]
        # Of two that ask as much, such as those of a GPU's slices by the same name, the smaller
        # batch fits in both.
        if candidates:
            return min(candidates, key=lambda entry: (entry.forward_pixels, entry.batch))
        return max(
            self.entries, key=lambda entry: (entry.forward_pixels, -entry.batch), default=None
        )

    def batch_size_for(self, width: int, height: int, *, guided: bool) -> int | None:
        """The batch size for a shape, with no more pixels or work than a measured batch had."""
        entry = self.entry_for(width, height, guided=guided)
        if entry is None:
            return None
        work_ratio = entry.forward_pixels / forward_pixels(width, height, guided=guided)
        pixel_ratio = entry.width * entry.height / (width * height)
        return floor_power_of_two(entry.batch * min(1, work_ratio, pixel_ratio))


def load_tuning(job: Job, model: ModelFacts, files: tuple[InputFile, ...]) -> TuningEntries:
    """The job's tuning entries for its model and GPU. Raises BadInput, Missing, TryAgain."""
    if job.batch.tuning is None:
        return TuningEntries()
    name = job.batch.tuning
    try:
        file = read_tuning_file(name)
    except Missing as error:
        raise Missing(
            f"{name}: there is no such tuning file. Run `imagekiln tune`, or correct batch.tuning."
        ) from error
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
    return replace(tuning, key=_tuning_key(job, model, tuning, files))


def _tuning_key(
    job: Job, model: ModelFacts, tuning: TuningEntries, files: tuple[InputFile, ...]
) -> str:
    # Where no row can have a size or guidance of its own, one entry decides.
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
    """The entry for an image of the job's defaults."""
    width, height = default_image_size(job, model)
    return tuning.entry_for(width, height, guided=_is_guided(job, model))


def tuned_figure(job: Job, model: ModelFacts, tuning: TuningEntries) -> TimeFigure | None:
    """What was measured of an image of the job's defaults."""
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
    """The batch size for each size of the job's images.

    None where the job sets the number, or the tuning file has no entries.
    """
    if job.batch.images is not None:
        return ()
    guided: dict[tuple[int, int], bool] = {}
    for group in groups:  # images of one size have one batch size: that of the most work among them
        size = (group.width, group.height)
        is_guided = model.own.call.is_guided(group.guidance)
        guided[size] = is_guided or guided.get(size, False)
    sizes = []
    for (width, height), is_guided in guided.items():
        images = tuning.batch_size_for(width, height, guided=is_guided)
        if images:
            sizes.append(BatchSize(width, height, images))
    return tuple(sizes)
