"""Tuning: the batch size for each size of a job's images, measured once on this machine's device and kept in a file."""

import time
from collections.abc import Callable, Sequence
from functools import cache

from imagekiln.steps import fitting, gauge, model, tuning_file
from imagekiln.steps.batching import default_image_size
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.device import choose_device, describe_device
from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.families import family_of
from imagekiln.steps.identity import ImageParameters
from imagekiln.steps.job import Job
from imagekiln.steps.model import ModelFacts
from imagekiln.steps.opening import load_denoiser
from imagekiln.steps.pipeline import library_versions
from imagekiln.steps.plan import PLAN_SCHEMA_VERSION, InputFacts, Plan, PlanCounts
from imagekiln.steps.saturation import MAX_BATCH_IMAGES, BatchMeasurement, BatchSearchResult, search_batch_size
from imagekiln.steps.subject import ImageSize, TuningTarget, to_gib
from imagekiln.steps.trial import Trial, TrialBudget
from imagekiln.steps.tuning import TuningResult

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
    known = {} if again else {each.tuning_key: each for each in tuning_file.read_tuning_file_or_empty(file).entries}
    entries, measured = [], 0
    for size in dict.fromkeys(sizes or [default_image_size(job, bench.facts)]):
        if (entry := known.get(bench.target.entry_key(size))) is None:
            if not measured:
                tuning_file.require_writable_tuning_file(file)
            entry, measured = bench.target.make_entry(size, bench.search(size), library_versions(job)), measured + 1
            tuning_file.add_tuning_entry(file, entry)
        entries.append(entry)
    return TuningResult(file, tuple(entries), measured)


class _TuningBench:
    """The job's model on this machine's device, loaded when it is first needed."""

    def __init__(self, job: Job, effort: TrialBudget, told: Callable[[str], None]) -> None:
        device = choose_device(job.device)
        self.facts = model.load_model_facts(job.model)
        fitting.require_compatibility(job, self.facts.pipeline)
        self._family = family_of(self.facts.pipeline)
        guided = self._family.uses_guidance(job.defaults.guidance)
        self.target = TuningTarget(job, self.facts.digest, guided, describe_device(device), gauge.device_memory(device))
        self._job, self._effort, self._told = job, effort, told
        self._load: Callable[[], Denoiser] = cache(lambda: load_denoiser(_empty_plan(job, self.facts)))

    def search(self, size: ImageSize) -> BatchSearchResult:
        """What the search for a size found."""
        self._require_valid_size(size)
        denoiser = self._load()
        denoiser.vae_decoder.reset()  # memory that ran out for another size says nothing of this one
        trial, end = (
            Trial(denoiser, self._image_parameters(size), self._effort),
            self._effort.minutes * 60 + time.monotonic(),
        )
        most = 1 if self._family.one_at_a_time else MAX_BATCH_IMAGES  # it draws one image at a time, whatever the batch

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
            TRIAL_PROMPT, given.negative_prompt, 0, *size, given.steps, given.guidance, given.sampler
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
    return Plan(PLAN_SCHEMA_VERSION, "tune", job, *size, facts, nothing, PlanCounts(0, 0, 0, 0), job.part.images, ())


def _format_measurement(size: ImageSize, batch: int, found: BatchMeasurement | None) -> str:
    if found is None:
        return f"{_format_size(size)}, {batch} at once: does not fit in memory"
    memory = "" if found.peak_bytes is None else f", {to_gib(found.peak_bytes)} GiB at most"
    return f"{_format_size(size)}, {batch} at once: {found.images_per_second:.3g} images/s{memory}"


def _format_size(size: ImageSize) -> str:
    return f"{size[0]} x {size[1]}"
