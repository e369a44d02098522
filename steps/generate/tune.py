"""Tuning: the batch size for each size of a job's images, measured once on this machine's device and kept in a file."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.batch_search import (
    BatchMeasurement,
    BatchSearchResult,
    search_batch_size,
)
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.diffusion.device import choose_device, describe_device, device_memory
from imagekiln.steps.generate.diffusion.pipeline import library_versions
from imagekiln.steps.generate.trial import Trial, TrialBudget
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.speed import SpeedSettings
from imagekiln.steps.job.tuning_file import (
    MAX_BATCH_IMAGES,
    MAX_TUNING_NAME_CHARS,
    BatchRate,
    TuningEntry,
    TuningKey,
    TuningResult,
    add_tuning_entry,
    read_tuning_file_or_empty,
    require_writable_tuning_file,
    throughput_settings,
    tuning_entry_key,
)
from imagekiln.steps.models.compatibility import require_compatibility
from imagekiln.steps.models.facts import ModelFacts, default_image_size, load_model_facts
from imagekiln.steps.models.families import family_of
from imagekiln.steps.runs.image import ImageParameters
from imagekiln.steps.runs.plan import PLAN_SCHEMA_VERSION, InputFacts, Plan, PlanCounts
from imagekiln.steps.runtime.sanitize import truncate_text

GIB = 2**30
ImageSize = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TuningTarget:
    """A job's model on a GPU with so many bytes, None where it shares the machine's. `digest` is of all its files."""

    job: Job
    digest: str
    guided: bool
    gpu: str
    memory: int | None

    @property
    def speed(self) -> SpeedSettings:
        """The settings that enter into how fast it is."""
        return throughput_settings(self.job.speed)

    def entry_key(self, size: ImageSize) -> TuningKey:
        """What the file has an entry for a size in pixels under."""
        dtype, gib = self.job.model.dtype, to_gib(self.memory)
        return tuning_entry_key(self.digest, dtype, self.speed, self.gpu, gib, *size, self.guided)

    def make_entry(
        self, size: ImageSize, found: BatchSearchResult, versions: dict[str, str]
    ) -> TuningEntry:
        """The entry for a size, of what was found just now."""
        return TuningEntry(
            model=truncate_text(self.job.model.id, MAX_TUNING_NAME_CHARS - 50),
            digest=self.digest,
            dtype=self.job.model.dtype,
            speed=self.speed,
            gpu=self.gpu,
            gpu_gib=to_gib(self.memory),
            width=size[0],
            height=size[1],
            guided=self.guided,
            batch=found.best.batch_size,
            steps=self.job.defaults.steps,
            seconds_per_image=_round_significant(1 / found.best.images_per_second),
            stopped=found.stop_reason,
            measured=tuple(map(_to_rate, found.measurements)),
            when=datetime.now(UTC).replace(microsecond=0),
            versions=versions,
        )


def to_gib(size: int | None) -> float | None:
    """Bytes as GiB, as exactly as people read them."""
    return None if size is None else round(size / GIB, 2)


def _to_rate(measured: BatchMeasurement) -> BatchRate:
    return BatchRate(
        batch=measured.batch_size,
        images_per_second=_round_significant(measured.images_per_second),
        peak_gib=to_gib(measured.peak_bytes),
    )


def _round_significant(number: float) -> float:
    return float(f"{number:.4g}")


TRIAL_PROMPT = "a photograph of a lighthouse on a cliff above the sea, waves below it, clouds in the evening sun"


def tune(
    job: Job,
    file: str,
    sizes: Sequence[ImageSize] = (),
    effort: TrialBudget | None = None,
    *,
    again: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> TuningResult:
    """Find the batch for each size in pixels, or the default one, and write it to `file` at once.

    What the file has already is measured only where it is to be `again`. `told` is told what each batch gave.
    Raises BadInput where model, size or file are not as they must be, TryAgain without the device.
    """
    bench = _TuningBench(job, effort or TrialBudget(), told)
    known = (
        {} if again else {each.tuning_key: each for each in read_tuning_file_or_empty(file).entries}
    )
    entries, measured = [], 0
    for size in dict.fromkeys(sizes or [default_image_size(job, bench.facts)]):
        if (entry := known.get(bench.target.entry_key(size))) is None:
            if not measured:
                require_writable_tuning_file(file)
            entry, measured = (
                bench.target.make_entry(size, bench.search(size), library_versions(job)),
                measured + 1,
            )
            add_tuning_entry(file, entry)
        entries.append(entry)
    return TuningResult(file, tuple(entries), measured)


class _TuningBench:
    """The job's model on this machine's device, loaded when it is first needed."""

    def __init__(self, job: Job, effort: TrialBudget, told: Callable[[str], None]) -> None:
        device = choose_device(job.device)
        self.facts = load_model_facts(job.model)
        require_compatibility(job, self.facts.pipeline)
        self._family = family_of(self.facts.pipeline)
        guided = self._family.uses_guidance(job.defaults.guidance)
        self.target = TuningTarget(
            job, self.facts.digest, guided, describe_device(device), device_memory(device)
        )
        self._job, self._effort, self._told = job, effort, told
        self._load: Callable[[], Denoiser] = cache(
            lambda: load_denoiser(_empty_plan(job, self.facts))
        )

    def search(self, size: ImageSize) -> BatchSearchResult:
        """What the search for a size found."""
        self._require_valid_size(size)
        denoiser = self._load()
        denoiser.vae_decoder.reset()  # memory that ran out for another size says nothing of this one
        trial, end = (
            Trial(denoiser, self._image_parameters(size), self._effort),
            self._effort.minutes * 60 + time.monotonic(),
        )
        most = (
            1 if self._family.one_at_a_time else MAX_BATCH_IMAGES
        )  # it draws one image at a time, whatever the batch

        def measure(batch: int) -> BatchMeasurement | None:
            found = trial.measure(batch)
            self._told(_format_measurement(size, batch, found))
            return found

        found = search_batch_size(measure, self.target.memory, most, lambda: time.monotonic() > end)
        if found is None:
            raise TryAgain(
                f"not even one image of {_format_size(size)} fits in the memory of {self.target.gpu}. Free it."
            )
        return found

    def _image_parameters(self, size: ImageSize) -> ImageParameters:
        given = self._job.defaults
        return ImageParameters(
            TRIAL_PROMPT,
            given.negative_prompt,
            0,
            *size,
            given.steps,
            given.guidance,
            given.sampler,
        )

    def _require_valid_size(self, size: ImageSize) -> None:
        multiple, most = self.facts.size_multiple, self._job.limits.pixels
        if any(side < 1 or side % multiple for side in size):
            raise BadInput(
                f"{_format_size(size)}: the model's sides are multiples of {multiple} pixels. Name another size."
            )
        if size[0] * size[1] > most:
            raise BadInput(
                f"{_format_size(size)}: has more than {most} pixels. Name another size, or raise limits.pixels."
            )


def _empty_plan(job: Job, facts: ModelFacts) -> Plan:
    """What loading the model asks of a plan: one without images."""
    size, nothing = default_image_size(job, facts), InputFacts(0, 0, "")
    return Plan(
        PLAN_SCHEMA_VERSION,
        "tune",
        job,
        *size,
        facts,
        nothing,
        PlanCounts(0, 0, 0, 0),
        job.part.images,
        (),
    )


def _format_measurement(size: ImageSize, batch: int, found: BatchMeasurement | None) -> str:
    if found is None:
        return f"{_format_size(size)}, {batch} at once: does not fit in memory"
    memory = "" if found.peak_bytes is None else f", {to_gib(found.peak_bytes)} GiB at most"
    return f"{_format_size(size)}, {batch} at once: {found.images_per_second:.3g} images/s{memory}"


def _format_size(size: ImageSize) -> str:
    return f"{size[0]} x {size[1]}"
