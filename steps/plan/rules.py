"""Rules for rejecting prompt rows. Each is an SQL condition, and one pass checks all rows."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.input_images import (
    INPUT_IMAGE_FORMATS,
    MAX_INPUT_BYTES,
    MAX_INPUT_PIXELS,
    ImageRejectionReason,
)
from imagekiln.steps.job.columns import (
    INPUT_IMAGE_COLUMNS,
    MAX_IMAGE_PIXELS,
    MAX_PROMPT_CHARS,
    MAX_REFERENCES,
    MAX_SIDE,
    PROMPT_COLUMNS,
    SAMPLERS,
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import MAX_SIDES
from imagekiln.steps.job.passes import RefinePass
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.families import UNKNOWN_CALL, Family, family_of, fills_masks
from imagekiln.steps.models.loras import LORA_REJECTION_TEXTS
from imagekiln.steps.models.own_settings import SamplerFit, names_distilled_model
from imagekiln.steps.models.passes import PASSES_PREFIX, PassSizes
from imagekiln.steps.plan.columns import INVALID, passthrough_names

COLUMN_BOUNDS = {column.name: column.bounds for column in PROMPT_COLUMNS if column.bounds}
RESCALE_HAS_NO_EFFECT = (
    "has no effect: it takes a model of Stable Diffusion 1, 2 or XL, a guidance above 1, and no "
    "source or control image; remove it from the job or the table"
)
NO_EFFECT = "has no effect: the model does not read it; remove it from the job or the table"
NO_FITS: Mapping[str, SamplerFit] = {}
NOT_UTF8 = "is not valid UTF-8"
INVALID_VALUE_REASONS = {
    "text": NOT_UTF8,
    "integer": "is not a 64-bit integer",
    "number": "is not a number",
}
SHA256_DIGITS = 64
IMAGE_FAULT_REASONS: Mapping[ImageRejectionReason, str] = {
    "place": "is outside the locations this table may reference",
    "missing": "does not exist, or may not be read",
    "bytes": f"has over {MAX_INPUT_BYTES} bytes",
    "format": f"is not a picture in {', '.join(INPUT_IMAGE_FORMATS)}",
    "pixels": f"has over {MAX_INPUT_PIXELS} pixels",
    "damaged": "is damaged: it does not decode",
    "many": f"has over {MAX_REFERENCES} images",
}


class RejectionRule(NamedTuple):
    """A rule that rejects rows matching `condition`, with the column and reason to report."""

    column: str
    condition: str
    reason: str


NOT_BLANK = r"regexp_matches({}, '[^\s\p{{Z}}]')"
TOO_LONG = f"is over {MAX_PROMPT_CHARS} characters"
NO_SOURCE = "is given without a source_image"
CELL_RULES = tuple(
    RejectionRule(
        column.name, f"wrong = '{column.name} {INVALID}'", INVALID_VALUE_REASONS[column.kind]
    )
    for column in PROMPT_COLUMNS
    if column.kind not in ("image", "images")
)
PROMPT_RULES = (
    RejectionRule("prompt", "prompt IS NULL", "is null"),
    RejectionRule("prompt", f"NOT {NOT_BLANK.format('prompt')}", "is blank"),
    RejectionRule("prompt", f"length(prompt) > {MAX_PROMPT_CHARS}", TOO_LONG),
    RejectionRule("negative_prompt", f"length(negative_prompt) > {MAX_PROMPT_CHARS}", TOO_LONG),
)
BOUNDS_RULES = {
    name: RejectionRule(
        name,
        f"{'row_seed' if name == 'seed' else name} "
        f"NOT BETWEEN {bounds.lowest} AND {bounds.highest}",
        f"is not between {bounds.lowest} and {bounds.highest}",
    )
    for name, bounds in COLUMN_BOUNDS.items()
}
# DuckDB turns NOT IN into a join, which does not keep the order of rows.
NO_SAMPLER = "list_position([{}], sampler) IS NULL"
# A row that violates several rules is reported under the first, so their order matters.
SETTING_RULES = (
    BOUNDS_RULES["steps"],
    BOUNDS_RULES["guidance"],
    BOUNDS_RULES["guidance_rescale"],
    *(
        RejectionRule("loras", f"lora_fault = '{fault}'", reason)
        for fault, reason in LORA_REJECTION_TEXTS.items()
    ),
    BOUNDS_RULES["images"],
    BOUNDS_RULES["seed"],
    RejectionRule(
        "sampler",
        NO_SAMPLER.format(", ".join(f"'{name}'" for name in SAMPLERS)),
        f"is none of {', '.join(SAMPLERS)}",
    ),
)
IMAGE_FAULT_RULES = tuple(
    RejectionRule(name, f"wrong = '{name} {fault}'", reason)
    for name in INPUT_IMAGE_COLUMNS
    for fault, reason in IMAGE_FAULT_REASONS.items()
)
STRENGTH_RULES = (
    RejectionRule("mask_image", "mask_image IS NOT NULL AND source_image IS NULL", NO_SOURCE),
    RejectionRule("strength", "strength IS NOT NULL AND source_image IS NULL", NO_SOURCE),
    RejectionRule("strength", "strength <= 0 OR strength > 1", "is not over 0 and up to 1"),
    RejectionRule(
        "strength", "strength * steps < 1", "times steps is under 1, which leaves nothing to draw"
    ),
)
SAME_ID_RULE = RejectionRule("id", "", "repeats the id of an earlier row with other content")


def first_violation_sql(rules: tuple[RejectionRule, ...]) -> str:
    """Build an expression for the index of the first rule that a row violates, or null."""
    cases = " ".join(f"WHEN {rule.condition} THEN {index}" for index, rule in enumerate(rules))
    return f"CAST(CASE {cases} END AS INTEGER)"


def rejection_rules(
    job: Job,
    model: ModelFacts,
    fit: SamplerFit | None = None,
    sizes: PassSizes | None = None,
    pass_fits: Mapping[str, SamplerFit] = NO_FITS,
) -> tuple[RejectionRule, ...]:
    """Build the rules of a job, in the order in which they apply to a row.

    Without `fit`, the model supports any sampler. `sizes` has the image sizes after passes, and
    `pass_fits` the samplers that the passes' own models support. Raises BadInput for a pass whose
    sampler its model does not support, or a few-step LoRA without defaults.
    """
    fit = fit or SamplerFit()
    _check_few_step_loras(job)
    _check_pass_samplers(job, fit, pass_fits)
    return (
        *CELL_RULES,
        *(
            RejectionRule(name, f"wrong = '{name} {INVALID}'", NOT_UTF8)
            for name in passthrough_names(len(job.carry))
        ),
        *PROMPT_RULES,
        *_size_rules(job, model.size_multiple),
        *SETTING_RULES,
        *_sampler_rules("the model", fit),
        *_guidance_rules(model, sizes),
        *_pass_rules(job, sizes, pass_fits),
        *IMAGE_FAULT_RULES,
        *_image_support_rules(job, model),
        *STRENGTH_RULES,
    )


def _check_few_step_loras(job: Job) -> None:
    """Raise BadInput for a few-step LoRA unless the job sets default steps and guidance."""
    if job.defaults.steps is not None and job.defaults.guidance is not None:
        return
    for name, lora in job.model.loras.items():
        if any(map(names_distilled_model, filter(None, (lora.id, lora.weight_name)))):
            raise BadInput(
                f"model.loras.{name}: is called as LoRAs for few steps are. Set defaults.steps and "
                "defaults.guidance, as its authors say."
            )


def _check_pass_samplers(job: Job, fit: SamplerFit, pass_fits: Mapping[str, SamplerFit]) -> None:
    for name, settings in job.passes.items():
        model_fit = pass_fits.get(name, fit)
        sampler = settings.sampler if isinstance(settings, RefinePass) else None
        if sampler is not None and sampler not in model_fit.samplers:
            raise BadInput(
                f"{PASSES_PREFIX}{name}.sampler is {sampler}; {_describe_fit(model_fit)}. Set it "
                "to one of these."
            )


def _describe_fit(fit: SamplerFit) -> str:
    return f"with the model's {fit.scheduler} work {', '.join(fit.samplers)}"


def _size_rules(job: Job, multiple: int) -> Iterator[RejectionRule]:
    limit = MAX_SIDES.get(job.encoding.kind, MAX_SIDE)
    for name in ("width", "height"):
        condition = f"({name} NOT BETWEEN {multiple} AND {MAX_SIDE} OR {name} % {multiple} <> 0)"
        reason = f"is not a positive multiple of {multiple}, which this model needs"
        yield RejectionRule(name, condition, reason)
    for name in ("width", "height") if limit < MAX_SIDE else ():
        reason = f"is over {limit} pixels, the most that {job.encoding.kind} holds"
        yield RejectionRule(name, f"{name} > {limit}", reason)
    reason = f"times height is over {MAX_IMAGE_PIXELS} pixels"
    yield RejectionRule("width", f"width * height > {MAX_IMAGE_PIXELS}", reason)


def _sampler_rules(subject: str, fit: SamplerFit) -> Iterator[RejectionRule]:
    if fit.samplers != SAMPLERS:
        condition = NO_SAMPLER.format(", ".join(f"'{name}'" for name in fit.samplers))
        reason = f"does not fit {subject}: {_describe_fit(fit)}"
        yield RejectionRule("sampler", condition, reason)


def _guidance_rules(model: ModelFacts, sizes: PassSizes | None) -> Iterator[RejectionRule]:
    call = model.own.call
    if not model.own.reads_guidance:
        yield RejectionRule("guidance", "guidance IS NOT NULL", NO_EFFECT)
    # Not all pipelines that start from images take it.
    has_no_effect = "TRUE"
    if call.rescales_guidance and call.guided_above is not None:
        images = ("source_image", "control_image")
        has_no_effect = " OR ".join(f"{name} IS NOT NULL" for name in images)
        has_no_effect += f" OR guidance <= {call.guided_above}"
    condition = f"guidance_rescale IS NOT NULL AND ({has_no_effect})"
    yield RejectionRule("guidance_rescale", condition, RESCALE_HAS_NO_EFFECT)
    if call.schedule_steps is not None:
        condition = f"guidance IS NULL AND steps <> {call.schedule_steps}"
        reason = f"is not {call.schedule_steps}, for which the model has guidance; set guidance"
        yield RejectionRule("steps", condition, reason)
    if sizes is not None and _refine_by_negative_prompts(sizes):
        return
    condition = NOT_BLANK.format("negative_prompt")
    reason = NO_EFFECT
    if call.takes_negative_prompt and call.guided_above is not None:
        condition += f" AND guidance <= {call.guided_above}"
        reason = reason.replace(":", f" with guidance up to {call.guided_above:g}:", 1)
    if call is not UNKNOWN_CALL:
        yield RejectionRule("negative_prompt", condition, reason)


def _refine_by_negative_prompts(sizes: PassSizes) -> bool:
    """Return whether the model of a refine pass reads the negative prompts of rows."""
    models = [
        facts.model for name, facts in sizes.facts.items() if sizes.passes[name].kind == "refine"
    ]
    return any(model is not None and model.own.call.takes_negative_prompt for model in models)


def _pass_rules(
    job: Job, sizes: PassSizes | None, pass_fits: Mapping[str, SamplerFit]
) -> Iterator[RejectionRule]:
    refining = {
        name: settings for name, settings in job.passes.items() if isinstance(settings, RefinePass)
    }
    if sizes is not None and sizes.alters_images:
        limit = min(MAX_SIDES.get(job.encoding.kind, MAX_SIDE), MAX_SIDE)
        width = sizes.final_side_sql("width")
        height = sizes.final_side_sql("height")
        reason = f"is over {limit} pixels after the passes"
        yield RejectionRule("width", f"{width} > {limit}", reason)
        yield RejectionRule("height", f"{height} > {limit}", reason)
        reason = f"times height is over {MAX_IMAGE_PIXELS} pixels after the passes"
        yield RejectionRule("width", f"{width} * {height} > {MAX_IMAGE_PIXELS}", reason)
        for name, settings in refining.items():
            if settings.steps is None:
                condition = f"floor(steps * {settings.redrawn!r}) < 1"
                reason = f"times the strength of the pass {name} is under 1, which leaves nothing"
                yield RejectionRule("steps", condition, reason)
    for name, fit in pass_fits.items():
        if name in refining and refining[name].sampler is None:  # the pass uses the row's sampler
            yield from _sampler_rules(f"the model of the pass {name}", fit)


def _image_support_rules(job: Job, model: ModelFacts) -> Iterator[RejectionRule]:
    if not job.draws:
        return
    variants = family_of(model.pipeline)
    missing_mode = f"is not supported: {model.pipeline} has no"
    support = {
        "source_image": (
            variants.image_to_image or variants.inpaint,
            f"{missing_mode} image-to-image mode",
        ),
        "mask_image": (variants.inpaint, f"{missing_mode} inpainting mode"),
        "control_image": (job.model.controlnet, "needs model.controlnet"),
        "reference_images": (
            job.model.ip_adapter or model.own.call.images_argument,
            "needs a model that edits images, or model.ip_adapter",
        ),
    }
    for column, (is_supported, reason) in support.items():
        if not is_supported:
            yield RejectionRule(column, f"{column} IS NOT NULL", reason)
    yield from _reference_rules(job, model)
    if fills_masks(model.pipeline):
        condition = "source_image IS NULL OR mask_image IS NULL"
        reason = f"is missing, or its source_image: {model.pipeline} fills a mask"
        yield RejectionRule("mask_image", condition, reason)
    if conflict := _control_conflict(job, variants):
        condition = "control_image IS NOT NULL AND source_image IS NOT NULL"
        reason = f"cannot be combined with {conflict}: {model.pipeline} does not support it"
        yield RejectionRule("control_image", condition, reason)


def _reference_rules(job: Job, model: ModelFacts) -> Iterator[RejectionRule]:
    call = model.own.call
    if call.needs_images:
        reason = f"is empty: {model.pipeline} edits images"
        yield RejectionRule("reference_images", "reference_images IS NULL", reason)
    limit, reader = call.max_images, model.pipeline
    if job.model.ip_adapter is not None:
        limit, reader = 1, "an IP-Adapter"
    condition = f"length(reference_images) > {limit * (SHA256_DIGITS + 1)}"
    reason = f"has more images than {reader} takes: {limit}"
    yield RejectionRule("reference_images", condition, reason)


def _control_conflict(job: Job, variants: Family) -> str | None:
    if not variants.controlnet:
        return None
    if not variants.control_with_source:
        return "a source_image"
    if job.model.ip_adapter is not None and not variants.control_source_and_reference:
        return "a source_image and an IP-Adapter"
    return None
