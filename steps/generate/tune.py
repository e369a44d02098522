"""Tuning: the best batch size for each size of a job's images, measured on this device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion.denoiser import load_denoiser
from imagekiln.steps.generate.diffusion.device import (
    describe_device,
    device_advice,
    device_memory,
)
from imagekiln.steps.generate.diffusion.device_choice import choose_device
from imagekiln.steps.generate.diffusion.pipeline import library_versions
from imagekiln.steps.generate.trial import (
    TUNE_AGAIN,
    BatchMeasurement,
    BatchSearchResult,
    Trial,
    TrialBudget,
    search_batch_size,
)
from imagekiln.steps.job.columns import MAX_IMAGE_PIXELS
from imagekiln.steps.job.execution import DEFAULT_PART_IMAGES, SpeedSettings
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import (
    MAX_BATCH_IMAGES,
    BatchRate,
    TuningEntry,
    TuningKey,
    TuningResult,
    add_tuning_entry,
    read_tuning_file_or_empty,
    require_writable_tuning_file,
    tuning_entry_key,
)
from imagekiln.steps.models.compatibility import require_compatibility
from imagekiln.steps.models.facts import ModelFacts, default_image_size, load_model_facts
from imagekiln.steps.models.families import family_of
from imagekiln.steps.models.image_defaults import default_guidance, default_steps
from imagekiln.steps.models.revisions import pin_revisions
from imagekiln.steps.models.weights_size import GIB
from imagekiln.steps.runs.image import ImageParameters
from imagekiln.steps.runs.plan import (
    PLAN_SCHEMA_VERSION,
    InputFacts,
    Plan,
    PlanCounts,
    creation_time,
)

TRIAL_PROMPT = (
    "a photograph of a lighthouse on a cliff above the sea, waves below it, "
    "clouds in the evening sun"
)
ImageSize = tuple[int, int]
OnMeasurement = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TuningTarget:
    """A job's model on a GPU with `memory` bytes; None where it shares the machine's memory."""

    job: Job
    facts: ModelFacts
    gpu: str
    memory: int | None

    @property
    def speed(self) -> SpeedSettings:
        """The settings that affect throughput."""
        return self.job.speed

    @property
    def guided(self) -> bool:
        """Whether the denoiser runs twice a step, as the job's defaults have it."""
        return self.facts.own.call.is_guided(default_guidance(self.job, self.facts))

    def entry_key(self, size: ImageSize) -> TuningKey:
        """The key of the file's entry for a size in pixels."""
        return tuning_entry_key(
            self.facts.digest,
            self.job.model.dtype,
            self.speed,
            self.gpu,
            to_gib(self.memory),
            *size,
            self.guided,
        )

    def make_entry(
        self, size: ImageSize, result: BatchSearchResult, versions: dict[str, str]
    ) -> TuningEntry:
        """The file's entry for a size, from a search that has just ended."""
        return TuningEntry(
            model=self.job.model.id,
            digest=self.facts.digest,
            dtype=self.job.model.dtype,
            speed=self.speed,
            gpu=self.gpu,
            gpu_gib=to_gib(self.memory),
            width=size[0],
            height=size[1],
            guided=self.guided,
            batch=result.best.batch_size,
            steps=default_steps(self.job, self.facts),
            seconds_per_image=_round_significant(1 / result.best.images_per_second),
            stopped=result.stop_reason,
            measured=tuple(_to_rate(measurement) for measurement in result.measurements),
            when=datetime.now(UTC).replace(microsecond=0),
            versions=versions,
        )


def to_gib(size: int | None) -> float | None:
    """Bytes as GiB, to two decimals."""
    return None if size is None else round(size / GIB, 2)


def _to_rate(measurement: BatchMeasurement) -> BatchRate:
    return BatchRate(
        batch=measurement.batch_size,
        images_per_second=_round_significant(measurement.images_per_second),
        peak_gib=to_gib(measurement.peak_bytes),
    )


def _round_significant(number: float) -> float:
    return float(f"{number:.4g}")


def tune(
    job: Job,
    file: str,
    sizes: Sequence[ImageSize] = (),
    effort: TrialBudget | None = None,
    *,
    again: bool = False,
    told: OnMeasurement = lambda _: None,
    max_batch: int | None = None,
) -> TuningResult:
    """Find the batch size for each size in pixels, or for the default size, and add it to `file`.

    An entry that the file has is measured anew only with `again`. `told` is called with a line on
    each measurement; no batch is larger than `max_batch`. Raises BadInput where model, size or
    file are unusable, TryAgain where the device is missing or too full.
    """
    bench = _TuningBench(job, effort or TrialBudget(), told, max_batch or MAX_BATCH_IMAGES)
    existing: dict[TuningKey, TuningEntry] = {}
    if not again:
        existing = {entry.tuning_key: entry for entry in read_tuning_file_or_empty(file).entries}

    entries: list[TuningEntry] = []
    measured = 0
    for size in dict.fromkeys(sizes or [default_image_size(job, bench.facts)]):
        entry = existing.get(bench.target.entry_key(size))
        if entry is None:
            if measured == 0:
                require_writable_tuning_file(file)
            entry = bench.target.make_entry(size, bench.search(size), library_versions(job))
            add_tuning_entry(file, entry)
            measured += 1
        entries.append(entry)
    return TuningResult(file, tuple(entries), measured)


class _TuningBench:
    """The job's model on this machine's device, loaded when it is first needed."""

    def __init__(
        self, job: Job, budget: TrialBudget, on_measurement: OnMeasurement, max_batch: int
    ) -> None:
        with device_advice(TUNE_AGAIN):
            device = choose_device(job.device)
        job = pin_revisions(job).job
        self.facts = load_model_facts(job.model)
        require_compatibility(job, self.facts.pipeline)
        family = family_of(self.facts.pipeline)
        self.target = TuningTarget(
            job,
            self.facts,
            describe_device(device),
            device_memory(device),
        )
        self._job = job
        self._budget = budget
        self._on_measurement = on_measurement
        self._max_batch = 1 if family.one_at_a_time else max_batch
        self._open_denoiser = cache(lambda: load_denoiser(_empty_plan(job, self.facts)))

    def search(self, size: ImageSize) -> BatchSearchResult:
        """Search the batch size for images of a size."""
        self._require_valid_size(size)
        with device_advice(TUNE_AGAIN):
            denoiser = self._open_denoiser()
        denoiser.vae_decoder.reset()  # what did not fit at another size says nothing about this one
        trial = Trial(denoiser, self._image_parameters(size), self._budget)
        deadline = time.monotonic() + self._budget.minutes * 60

        def measure(batch_size: int) -> BatchMeasurement | None:
            measurement = trial.measure(batch_size)
            self._on_measurement(_format_measurement(size, batch_size, measurement))
            return measurement

        result = search_batch_size(
            measure, self.target.memory, self._max_batch, lambda: time.monotonic() > deadline
        )
        if result is None:
            raise TryAgain(
                f"not even one image of {_format_size(size)} fits in the memory of "
                f"{self.target.gpu}. Free it."
            )
        return result

    def _image_parameters(self, size: ImageSize) -> ImageParameters:
        defaults = self._job.defaults
        return ImageParameters(
            TRIAL_PROMPT,
            defaults.negative_prompt,
            0,
            *size,
            default_steps(self._job, self.facts),
            default_guidance(self._job, self.facts),
            defaults.sampler,
        )

    def _require_valid_size(self, size: ImageSize) -> None:
        multiple = self.facts.size_multiple
        if any(side < 1 or side % multiple for side in size):
            raise BadInput(
                f"{_format_size(size)}: the model's sides are multiples of {multiple} pixels. "
                "Choose another size."
            )
        if size[0] * size[1] > MAX_IMAGE_PIXELS:
            raise BadInput(
                f"{_format_size(size)}: has more than {MAX_IMAGE_PIXELS} pixels. "
                "Choose another size."
            )


def _empty_plan(job: Job, facts: ModelFacts) -> Plan:
    """A plan without images, for what loads the model by a plan."""
    return Plan(
        PLAN_SCHEMA_VERSION,
        "tune",
        creation_time(),
        job,
        *default_image_size(job, facts),
        facts,
        InputFacts(0, 0, ""),
        PlanCounts(0, 0, 0, 0),
        job.part.images or DEFAULT_PART_IMAGES,
        (),
    )


def _format_measurement(
    size: ImageSize, batch_size: int, measurement: BatchMeasurement | None
) -> str:
    batch = f"{_format_size(size)}, {batch_size} at once"
    if measurement is None:
        return f"{batch}: does not fit in memory"
    rate = f"{measurement.images_per_second:.3g} images/s"
    if measurement.peak_bytes is None:
        return f"{batch}: {rate}"
    return f"{batch}: {rate}, {to_gib(measurement.peak_bytes)} GiB at most"


def _format_size(size: ImageSize) -> str:
    return f"{size[0]} x {size[1]}"
