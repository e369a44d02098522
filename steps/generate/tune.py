"""Find the best batch size for each image size of a job, measured on this device.

Batches are doubled until throughput saturates or memory is full, each timed by a few steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import torch

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
    BatchRate,
    TuningEntry,
    TuningResult,
    add_tuning_entries,
    read_tuning_file_or_empty,
)
from imagekiln.steps.models.adapters import require_adapter_support
from imagekiln.steps.models.facts import (
    ModelFacts,
    default_guidance,
    default_image_size,
    default_steps,
    locate_model,
)
from imagekiln.steps.models.families import family_of, fills_masks, require_pipeline_support
from imagekiln.steps.models.placement import GIB
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
TRIAL_STEPS = (4, 12)  # the difference gives the time of all steps
DRAWS = 3  # timed runs of each: a busy neighbor or a low clock can only slow one down
# Below this gain in images per second, a larger batch is not worth its memory and longer parts.
MIN_GAIN = 0.03
# Consecutive doublings without enough gain: a single one may be noise or a kernel's tiling.
PATIENCE = 2
# Of the device's memory. The rest is for longer prompts and other processes on the device.
MAX_MEMORY_SHARE = 0.9
ImageSize = tuple[int, int]


def tune(
    job: Job,
    file: str,
    sizes: Sequence[ImageSize] = (),
    *,
    again: bool = False,
    report: Callable[[str], None] = lambda _: None,
    max_batch: int = MAX_BATCH_IMAGES,
) -> TuningResult:
    """Measure the best batch size for each image size, or the default size, and add it to `file`.

    Existing entries are measured again only with `again`. `report` is called with a line for each
    measurement. Raises BadInput if model, size or file are unusable, TryAgain if the device is
    missing or too full.
    """
    device = choose_device(job.device)
    job, _ = pin_revisions(job)
    _, facts = locate_model(job.model)
    require_pipeline_support(job, facts.pipeline, facts.quantization)
    _require_drawing_from_text(job, facts)
    require_adapter_support(job.model, facts.pipeline)
    drafts = [
        _draft_entry(job, facts, device, size)
        for size in dict.fromkeys(sizes or [default_image_size(job, facts)])
    ]
    entries = {entry.tuning_key: entry for entry in read_tuning_file_or_empty(file).entries}
    missing = [draft for draft in drafts if again or draft.tuning_key not in entries]
    if missing:
        add_tuning_entries(file)  # fail now if the file cannot be written
    denoiser = None
    for draft in missing:
        denoiser = denoiser or load_denoiser(_empty_plan(job, facts))
        entry = _complete_entry(draft, denoiser, job, facts, max_batch, report)
        entries[draft.tuning_key] = entry
        add_tuning_entries(file, entry)
    return TuningResult(file, tuple(entries[draft.tuning_key] for draft in drafts), len(missing))


def _require_drawing_from_text(job: Job, facts: ModelFacts) -> None:
    pipeline = facts.pipeline
    if facts.own.call.needs_images or fills_masks(pipeline):
        raise BadInput(
            f"{job.model.id}: {pipeline} needs images, and batches are measured from text alone. "
            "Set batch.images."
        )


def _draft_entry(job: Job, facts: ModelFacts, device: torch.device, size: ImageSize) -> TuningEntry:
    """Build an entry without measurements. Raises BadInput if images cannot have this size."""
    multiple = facts.size_multiple
    width, height = size
    is_multiple = width % multiple == height % multiple == 0
    if not is_multiple or not 0 < width * height <= MAX_IMAGE_PIXELS:
        raise BadInput(
            f"{width} x {height}: the model's sides are multiples of {multiple}, with at most "
            f"{MAX_IMAGE_PIXELS} pixels. Choose another size."
        )
    memory = device_memory(device)
    return TuningEntry.model_construct(
        model=job.model.id,
        digest=facts.digest,
        dtype=job.model.dtype,
        speed=job.speed,
        gpu=describe_device(device),
        gpu_gib=None if memory is None else round(memory / GIB, 2),
        width=width,
        height=height,
        guided=facts.own.call.is_guided(default_guidance(job, facts)),
        steps=default_steps(job, facts),
        versions=library_versions(job),
    )


def _complete_entry(
    draft: TuningEntry,
    denoiser: Denoiser,
    job: Job,
    facts: ModelFacts,
    max_batch: int,
    report: Callable[[str], None],
) -> TuningEntry:
    """Measure growing batches of the draft's image size, and choose the best one."""
    family = family_of(facts.pipeline)
    defaults = job.defaults
    size = f"{draft.width} x {draft.height}"
    parameters = ImageParameters(
        TRIAL_PROMPT,
        defaults.negative_prompt,
        0,
        draft.width,
        draft.height,
        draft.steps,
        default_guidance(job, facts),
        defaults.sampler,
    )
    denoiser.vae_decoder.reset()  # whole images may fit at this size

    def measure(images: int) -> BatchRate | None:
        rate = measure_batch(denoiser, parameters, images)
        report(f"{size}, {images} at once: {_format_rate(rate)}")
        return rate

    largest = 1 if family.one_at_a_time else max_batch
    rates = measure_rates(measure, MAX_MEMORY_SHARE * (draft.gpu_gib or math.inf), largest)
    if not rates:
        raise TryAgain(f"not even one image of {size} fits in the memory of {draft.gpu}. Free it.")
    # A single prompt is padded less than a batch's, so its rate does not hold for longer prompts.
    best = choose_batch(rates[1:] if family.pad_to_tokens and rates[1:] else rates)
    measured = {
        "batch": best.batch,
        "seconds_per_image": _round_significant(1 / best.images_per_second),
        "measured": rates,
        "when": datetime.now(UTC).replace(microsecond=0),
    }
    return TuningEntry.model_validate(vars(draft) | measured)


def measure_rates(
    measure: Callable[[int], BatchRate | None], memory_gib: float, max_size: int
) -> list[BatchRate]:
    """Measure batches of 1, 2, 4... images up to `max_size`, until throughput saturates.

    Stops at a batch that does not fit, for which `measure` returns None, or that takes more than
    `memory_gib`, unless it is a single image.
    """
    rates: list[BatchRate] = []
    size = 1
    while size <= max_size:
        rate = measure(size)
        if rate is None or (rates and (rate.peak_gib or 0.0) > memory_gib):
            break
        rates.append(rate)
        speeds = [rate.images_per_second for rate in rates]
        if len(rates) > PATIENCE and max(speeds) < (1 + MIN_GAIN) * max(speeds[:-PATIENCE]):
            break
        size *= 2
    return rates


def choose_batch(rates: Sequence[BatchRate]) -> BatchRate:
    """Choose the smallest batch that is about as fast as the fastest."""
    enough = (1 - MIN_GAIN) * max(rate.images_per_second for rate in rates)
    return next(rate for rate in rates if rate.images_per_second >= enough)


def measure_batch(denoiser: Denoiser, parameters: ImageParameters, images: int) -> BatchRate | None:
    """Measure the rate of a batch with all its steps; None if it does not fit in memory."""
    few, many = (min(steps, parameters.steps) for steps in TRIAL_STEPS)
    try:
        reset_peak(denoiser.device)
        _draw(denoiser, parameters, images, few)  # compiles, chooses kernels, encodes the prompt
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
    """Generate a batch with `steps` steps and return the seconds it took."""
    rows = [
        ImageRow(index, f"{index:032x}", replace(parameters, seed=index, steps=steps))
        for index in range(images)
    ]
    started = synchronized_time(denoiser.device)
    list(denoiser.draw(rows, len(rows), lambda: None))  # waits for pending images
    return synchronized_time(denoiser.device) - started


def _empty_plan(job: Job, facts: ModelFacts) -> Plan:
    """Build a plan without images, to load the model with."""
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
