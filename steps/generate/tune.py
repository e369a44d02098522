"""Find the best batch size for each image size of a job, measured on this device.

Batches are doubled until throughput saturates or memory is full, each timed by a few steps.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.diffusion.device import (
    choose_device,
    describe_device,
    device_memory,
    explain_machine,
    is_out_of_memory,
    process_peak_bytes,
    reset_peak,
    synchronized_time,
)
from imagekiln.steps.generate.diffusion.pipeline import library_versions
from imagekiln.steps.job.columns import MAX_IMAGE_PIXELS
from imagekiln.steps.job.execution import DEFAULT_PART_IMAGES
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import (
    MAX_BATCH_IMAGES,
    MAX_MEMORY_SHARE,
    BatchRate,
    StopReason,
    TuningEntry,
    TuningKey,
    TuningResult,
    add_tuning_entry,
    read_tuning_file_or_empty,
    tuning_entry_key,
    write_tuning_file,
)
from imagekiln.steps.models.adapters import require_adapter_support
from imagekiln.steps.models.facts import (
    ModelFacts,
    default_guidance,
    default_image_size,
    default_steps,
    locate_model,
)
from imagekiln.steps.models.families import family_of, require_pipeline_support
from imagekiln.steps.models.performance import GIB
from imagekiln.steps.models.resolve import pin_revisions
from imagekiln.steps.runs.image import ImageParameters, ImageRow
from imagekiln.steps.runs.plan import (
    PLAN_SCHEMA_VERSION,
    InputFacts,
    Plan,
    PlanCounts,
    creation_time,
)
from imagekiln.steps.storage.failures import error_reason

TRIAL_PROMPT = (
    "a photograph of a lighthouse on a cliff above the sea, waves below it, "
    "clouds in the evening sun"
)
TRIAL_STEPS = (4, 12)  # what all steps take follows from the difference
DRAWS = 3  # of each of the two: a busy neighbor or a low clock only slows one down
# Below this gain in images a second, a larger batch is not worth its memory and its longer parts.
MIN_GAIN = 0.03
# Doublings in a row that gain too little: one alone may be noise, or a step in a kernel's tiling.
PATIENCE = 2
ImageSize = tuple[int, int]


def tune(
    job: Job,
    file: str,
    sizes: Sequence[ImageSize] = (),
    *,
    minutes: float = 15.0,
    again: bool = False,
    report: Callable[[str], None] = lambda _: None,
    max_batch: int = MAX_BATCH_IMAGES,
) -> TuningResult:
    """Find the batch size for each size in pixels, or the default size, and add it to `file`.

    Existing entries are measured anew only with `again`. After `minutes` for a size, what was
    measured decides. `report` is called with a line on each measurement. Raises BadInput if model,
    size or file are unusable, TryAgain if the device is missing or too full.
    """
    bench = _TuningBench(job)
    entries: dict[TuningKey, TuningEntry] = {}
    if not again:
        entries = {entry.tuning_key: entry for entry in read_tuning_file_or_empty(file).entries}
    keys = [bench.entry_key(size) for size in sizes or [default_image_size(job, bench.facts)]]
    missing = [key for key in dict.fromkeys(keys) if key not in entries]
    if missing:
        write_tuning_file(file, read_tuning_file_or_empty(file))  # or else it fails only later
    for key in missing:
        entries[key] = bench.make_entry((key[5], key[6]), minutes, max_batch, report)
        add_tuning_entry(file, entries[key])
    return TuningResult(file, tuple(entries[key] for key in dict.fromkeys(keys)), len(missing))


class _TuningBench:
    """The job's model on this machine's device, loaded when it is first needed."""

    def __init__(self, job: Job) -> None:
        device = choose_device(job.device)
        self._job, _ = pin_revisions(job)
        _, self.facts = locate_model(self._job.model)
        require_pipeline_support(self._job, self.facts.pipeline)
        require_adapter_support(self._job.model, self.facts.pipeline)
        self._gpu = describe_device(device)
        memory = device_memory(device)
        self._memory_gib = None if memory is None else round(memory / GIB, 2)
        self._steps = default_steps(job, self.facts)
        guidance = default_guidance(job, self.facts)
        self._guided = self.facts.own.call.is_guided(guidance)
        negative, sampler = job.defaults.negative_prompt, job.defaults.sampler
        self._parameters = ImageParameters(
            TRIAL_PROMPT, negative, 0, 0, 0, self._steps, guidance, sampler
        )

    @cached_property
    def _denoiser(self) -> Denoiser:
        return load_denoiser(_empty_plan(self._job, self.facts))

    def entry_key(self, size: ImageSize) -> TuningKey:
        """The key of the file's entry for a size in pixels. Raises BadInput if no row has it."""
        multiple = self.facts.size_multiple
        width, height = size
        problem = None
        if width < 1 or height < 1 or width % multiple or height % multiple:
            problem = f"the model's sides are multiples of {multiple} pixels"
        elif width * height > MAX_IMAGE_PIXELS:
            problem = f"has more than {MAX_IMAGE_PIXELS} pixels"
        if problem:
            raise BadInput(f"{_format_size(size)}: {problem}. Choose another size.")
        model, speed, gpu, gib = self._job.model, self._job.speed, self._gpu, self._memory_gib
        digest = self.facts.digest
        return tuning_entry_key(digest, model.dtype, speed, gpu, gib, width, height, self._guided)

    def make_entry(
        self, size: ImageSize, minutes: float, max_batch: int, report: Callable[[str], None]
    ) -> TuningEntry:
        """Measure growing batches of a size, and choose one."""
        family = family_of(self.facts.pipeline)
        parameters = replace(self._parameters, width=size[0], height=size[1])
        self._denoiser.vae_decoder.reset()  # what did not fit at another size may fit at this one

        def measure(images: int) -> BatchRate | None:
            rate = measure_batch(self._denoiser, parameters, images)
            report(f"{_format_size(size)}, {images} at once: {_format_rate(rate)}")
            return rate

        rates, stopped = search_batch_size(
            measure,
            MAX_MEMORY_SHARE * (self._memory_gib or math.inf),
            1 if family.one_at_a_time else max_batch,
            time.monotonic() + 60 * minutes,
        )
        if not rates:
            raise TryAgain(
                f"not even one image of {_format_size(size)} fits in the memory of {self._gpu}. "
                "Free it."
            )
        # A single text is padded less than those of a batch, which says nothing of longer ones.
        best = choose_batch(rates[1:] if family.pad_to_tokens and rates[1:] else rates)
        return TuningEntry(
            model=self._job.model.id,
            digest=self.facts.digest,
            dtype=self._job.model.dtype,
            speed=self._job.speed,
            gpu=self._gpu,
            gpu_gib=self._memory_gib,
            width=size[0],
            height=size[1],
            guided=self._guided,
            batch=best.batch,
            steps=self._steps,
            seconds_per_image=_round_significant(1 / best.images_per_second),
            stopped=stopped,
            measured=tuple(rates),
            when=datetime.now(UTC).replace(microsecond=0),
            versions=library_versions(self._job),
        )


def search_batch_size(
    measure: Callable[[int], BatchRate | None], memory_gib: float, max_size: int, deadline: float
) -> tuple[list[BatchRate], StopReason]:
    """Measure batches of 1, 2, 4... up to `max_size`; return the rates and why it ended.

    `measure` returns None for a batch that does not fit. One that takes more than `memory_gib` is
    left out, unless it is a single image. `deadline` is a time of `time.monotonic`.
    """
    rates: list[BatchRate] = []
    size = 1
    while size <= max_size:
        if rates and time.monotonic() > deadline:
            return rates, "time"
        rate = measure(size)
        if rate is None or (rates and (rate.peak_gib or 0.0) > memory_gib):
            return rates, "memory"
        rates.append(rate)
        if len(rates) > PATIENCE:
            enough = (1 + MIN_GAIN) * max(rate.images_per_second for rate in rates[:-PATIENCE])
            if all(rate.images_per_second < enough for rate in rates[-PATIENCE:]):
                return rates, "saturated"
        size *= 2
    return rates, "largest"


def choose_batch(rates: Sequence[BatchRate]) -> BatchRate:
    """The smallest batch that is about as fast as the fastest."""
    enough = (1 - MIN_GAIN) * max(rate.images_per_second for rate in rates)
    return next(rate for rate in rates if rate.images_per_second >= enough)


def measure_batch(denoiser: Denoiser, parameters: ImageParameters, images: int) -> BatchRate | None:
    """The rate of a batch with all its steps; None if it does not fit in memory."""
    few, many = (min(steps, parameters.steps) for steps in TRIAL_STEPS)
    try:
        reset_peak(denoiser.device)
        _draw(denoiser, parameters, images, few)  # compiles, chooses kernels, encodes the text
        short = min(_draw(denoiser, parameters, images, few) for _ in range(DRAWS))
        long = min(_draw(denoiser, parameters, images, many) for _ in range(DRAWS))
    except KilnError:
        raise
    except Exception as error:  # a user's model may raise anything
        if failure := explain_machine(error):
            raise failure from error
        if is_out_of_memory(error):
            return None
        raise BadInput(
            f"the model does not draw ({error_reason(error)}). Correct the job's defaults."
        ) from error
    step = max(0.0, long - short) / max(1, many - few)
    peak_gib = None
    if denoiser.device.type == "cuda":
        peak_gib = round(process_peak_bytes(denoiser.device) / GIB, 2)
    return BatchRate(
        batch=images,
        images_per_second=_round_significant(images / (long + (parameters.steps - many) * step)),
        peak_gib=peak_gib,
    )


def _draw(denoiser: Denoiser, parameters: ImageParameters, images: int, steps: int) -> float:
    """Draw a batch of so few steps; the seconds that it took."""
    rows = [
        ImageRow(index, f"{index:032x}", replace(parameters, seed=index, steps=steps))
        for index in range(images)
    ]
    started = synchronized_time(denoiser.device)
    list(denoiser.draw(rows, len(rows), lambda: None))  # waits for images that are still drawn
    return synchronized_time(denoiser.device) - started


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


def _round_significant(number: float) -> float:
    return float(f"{number:.4g}")


def _format_rate(rate: BatchRate | None) -> str:
    if rate is None:
        return "does not fit in memory"
    peak = "" if rate.peak_gib is None else f", {rate.peak_gib} GiB at most"
    return f"{rate.images_per_second:.3g} images/s{peak}"


def _format_size(size: ImageSize) -> str:
    return f"{size[0]} x {size[1]}"
