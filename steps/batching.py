"""The batch sizes that planning freezes: the job's number, else what was tuned."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from imagekiln.steps import footers, model, tuning_file
from imagekiln.steps.batch_table import power_of_two
from imagekiln.steps.catalog import Group
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.families import family
from imagekiln.steps.job import Job
from imagekiln.steps.model import ModelFacts
from imagekiln.steps.plan import BatchSize
from imagekiln.steps.sources import Source
from imagekiln.steps.tuning import Entry, Tuning, deciding, load

SHAPING = {"width", "height", "guidance"}  # the columns by which rows may need other batches than the defaults


@dataclass(frozen=True, slots=True)
class Known:
    """The entries of a job's tuning file for its model and GPU."""

    entries: tuple[Entry, ...] = ()

    def entry(self, width: int, height: int, *, guided: bool) -> Entry | None:
        """The entry for a shape, or else for the next that asks more of the device, or else the one that asks most."""
        wanted = load(width, height, guided=guided)
        exact = [each for each in self.entries if (each.width, each.height, each.guided) == (width, height, guided)]
        enough = exact or [each for each in self.entries if each.load >= wanted]
        # Of two that ask as much, such as those of a GPU's slices by the same name, the smaller batch fits in both.
        if enough:
            return min(enough, key=lambda each: (each.load, each.batch))
        return max(self.entries, key=lambda each: (each.load, -each.batch), default=None)

    def images(self, width: int, height: int, *, guided: bool) -> int | None:
        """The batch for a shape: never more pixels in one, or more work, than in a batch that was measured."""
        entry = self.entry(width, height, guided=guided)
        if entry is None:
            return None
        work, pixels = entry.load / load(width, height, guided=guided), entry.width * entry.height / (width * height)
        return power_of_two(entry.batch * min(1, work, pixels))


NOTHING = Known()


def known(job: Job, digest: Callable[[], str]) -> Known:
    """What is known of a job's batches before its rows are read.

    `digest` identifies its model, and is asked only where there is a tuning file: hashing weights takes a while.
    Raises BadInput, Missing, TryAgain.
    """
    if job.batch.tuning is None:
        return NOTHING
    files = digest()
    found = [each for each in _read(job.batch.tuning).entries if _fits(each, job, files)]
    gpus = sorted({each.gpu for each in found})
    if job.batch.gpu is None and len(gpus) > 1:
        named = ", ".join(gpus)
        raise BadInput(f"{job.batch.tuning}: has entries for several GPUs ({named}). Name one as batch.gpu.")
    gpu = job.batch.gpu or next(iter(gpus), None)
    return Known(tuple(each for each in found if each.gpu == gpu))


def _read(name: str) -> Tuning:
    try:
        return tuning_file.read(name)
    except Missing as error:
        raise Missing(
            f"{name}: there is no such tuning file. Run `imagekiln tune`, or correct batch.tuning."
        ) from error


def _fits(entry: Entry, job: Job, digest: str) -> bool:
    return (entry.digest, entry.dtype, deciding(entry.speed)) == (digest, job.model.dtype, deciding(job.speed))


def used(job: Job, tuned: Known, found: tuple[Source, ...]) -> str:
    """What of the tuning file decides the plan, as a text for the run's id: empty where nothing does.

    Where no row can have a size or guidance of its own, that is one entry.
    """
    entries: Iterable[Entry | None] = tuned.entries
    if entries and not any(SHAPING & file.names.keys() for file in footers.inspect(found, job.columns, job.carry)):
        entries = [default_entry(job, model.facts(job.model), tuned)]
    facts = [_decides(job, each) for each in entries if each is not None]
    return json.dumps(sorted(facts)) if any(facts) else ""


def _decides(job: Job, entry: Entry) -> list[object]:
    shape: list[object] = [entry.width, entry.height, entry.guided]
    batch = [] if job.batch.images is not None else [entry.batch]
    timed = job.shard.minutes is not None and job.shard.seconds_per_image is None
    seconds = [entry.seconds_per_image, entry.steps] if timed else []
    return [*shape, *batch, *seconds] if batch or seconds else []


def default_entry(job: Job, facts: ModelFacts, tuned: Known) -> Entry | None:
    """The entry for an image that is as the job's defaults say."""
    guided = family(facts.pipeline).guided(job.defaults.guidance)
    return tuned.entry(*default_size(job, facts), guided=guided)


def seconds_per_work(job: Job, facts: ModelFacts, tuned: Known) -> float | None:
    """GPU seconds for each pixel and step of an image that is as the job's defaults say, as they were measured."""
    entry = default_entry(job, facts, tuned)
    if entry is None:
        return None
    guided = family(facts.pipeline).guided(job.defaults.guidance)
    return entry.seconds_per_image / entry.load / entry.steps * load(1, 1, guided=guided)


def default_size(job: Job, facts: ModelFacts) -> tuple[int, int]:
    """Width and height of an image whose row says nothing, in pixels."""
    return job.defaults.width or facts.width, job.defaults.height or facts.height


def sizes(job: Job, facts: ModelFacts, groups: Sequence[Group], tuned: Known) -> tuple[BatchSize, ...]:
    """The batch for each size of the job's images; none where the job says the number, or nobody knows any."""
    if job.batch.images is not None:
        return ()
    guided: dict[tuple[int, int], bool] = {}
    for group in groups:  # images of one size have one batch: that of the most work among them
        size = group.width, group.height
        guided[size] = guided.get(size, False) or family(facts.pipeline).guided(group.guidance)
    found = (BatchSize(*size, images) for size in guided if (images := tuned.images(*size, guided=guided[size])))
    return tuple(found)
