"""Reasons to reject a prompt row. Each rule is a condition in SQL: one pass checks all rows."""

from collections.abc import Iterator, Mapping
from itertools import starmap
from typing import NamedTuple, TypeAlias

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
    MAX_SIDE,
    PROMPT_COLUMNS,
    SAMPLERS,
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import MAX_SIDES
from imagekiln.steps.job.passes import RefinePass
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.families import UNKNOWN_CALL, Family, family_of
from imagekiln.steps.models.loras import LORA_REJECTION_TEXTS
from imagekiln.steps.models.own_settings import SamplerFit, names_distilled_model
from imagekiln.steps.models.passes import PASSES_PREFIX, PassSizes
from imagekiln.steps.plan.columns import passthrough_names

COLUMN_BOUNDS = {column.name: column.bounds for column in PROMPT_COLUMNS if column.bounds}
NO_EFFECT = "has no effect: the model does not read it; remove it from the job or the table"
NO_FITS: Mapping[str, SamplerFit] = {}
NOT_UTF8 = "is not valid UTF-8"
INVALID_VALUE_REASONS = {
    "text": NOT_UTF8,
    "integer": "is not a 64-bit integer",
    "number": "is not a number",
}
IMAGE_FAULT_REASONS: Mapping[ImageRejectionReason, str] = {
    "place": "is outside the locations this table may reference",
    "missing": "does not exist, or may not be read",
    "bytes": f"has over {MAX_INPUT_BYTES} bytes",
    "format": f"is not a picture in {', '.join(INPUT_IMAGE_FORMATS)}",
    "pixels": f"has over {MAX_INPUT_PIXELS} pixels",
    "damaged": "is damaged: it does not decode",
}


class RejectionRule(NamedTuple):
    """A row for which `condition` holds is rejected, for this column and reason."""

    column: str
    condition: str
    reason: str


NOT_BLANK = r"regexp_matches({}, '[^\s\p{{Z}}]')"
SAME_ID_RULE = RejectionRule("id", "", "repeats the id of an earlier row with other content")


def first_violation_sql(rules: tuple[RejectionRule, ...]) -> str:
    """The index of the first rule that a row breaks, or null."""
    cases = " ".join(f"WHEN {rule.condition} THEN {index}" for index, rule in enumerate(rules))
    return f"CAST(CASE {cases} END AS INTEGER)"


def rejection_rules(
    job: Job,
    model: ModelFacts,
    fit: SamplerFit | None = None,
    sizes: PassSizes | None = None,
    pass_fits: Mapping[str, SamplerFit] = NO_FITS,
) -> tuple[RejectionRule, ...]:
    """The rules of a job, in the order in which they are applied to a row.

    Without `fit`, any sampler fits the model. `sizes` are those that passes give, `pass_fits` the
    samplers of the passes' own models. Raises BadInput if a default breaks a rule.
    """
    fit = fit or SamplerFit()
    _check_sides(job, model.size_multiple)
    _check_few_step_loras(job)
    _check_samplers(job, fit, pass_fits)
    rules = [
        *_cell_rules(len(job.carry)),
        *_prompt_rules(),
        *_size_rules(job, model.size_multiple),
        *_setting_rules(fit),
        *_guidance_rules(model, sizes),
        *_pass_rules(job, sizes),
        *_pass_sampler_rules(job, pass_fits),
        *_input_image_rules(job, model),
    ]
    return tuple(starmap(RejectionRule, rules))


def _check_sides(job: Job, multiple: int) -> None:
    for name, side in (("width", job.defaults.width), ("height", job.defaults.height)):
        if side is not None and (side % multiple or side > MAX_SIDE):
            nearest = min(max(1, round(side / multiple)), MAX_SIDE // multiple) * multiple
            raise BadInput(
                f"defaults.{name} is {side}; this model needs a multiple of {multiple}. "
                f"Set it to {nearest}."
            )


def _check_few_step_loras(job: Job) -> None:
    """Raise BadInput for a LoRA whose number of steps only the user knows."""
    if job.defaults.steps is not None and job.defaults.guidance is not None:
        return
    for name, lora in job.model.loras.items():
        if any(map(names_distilled_model, filter(None, (lora.id, lora.weight_name)))):
            raise BadInput(
                f"model.loras.{name}: is called as LoRAs for few steps are. Set defaults.steps and "
                "defaults.guidance, as its authors say."
            )


def _check_samplers(job: Job, fit: SamplerFit, pass_fits: Mapping[str, SamplerFit]) -> None:
    samplers = {"defaults.sampler": (job.defaults.sampler, fit)}
    for name, settings in job.passes.items():
        if isinstance(settings, RefinePass):
            sampler = settings.sampler or job.defaults.sampler
            samplers[f"{PASSES_PREFIX}{name}.sampler"] = (sampler, pass_fits.get(name, fit))
    for setting, (sampler, model_fit) in samplers.items():
        if sampler not in model_fit.samplers:
            raise BadInput(
                f"{setting} is {sampler}; {_describe_fit(model_fit)}. Set it to one of these."
            )


def _describe_fit(fit: SamplerFit) -> str:
    return f"with the model's {fit.scheduler} work {', '.join(fit.samplers)}"


Rules: TypeAlias = Iterator[tuple[str, str, str]]  # column, condition, reason


def _cell_rules(carried: int) -> Rules:
    for column in PROMPT_COLUMNS:
        if column.kind != "image":
            yield column.name, f"wrong = '{column.name}'", INVALID_VALUE_REASONS[column.kind]
    for name in passthrough_names(carried):
        yield name, f"wrong = '{name}'", NOT_UTF8


def _prompt_rules() -> Rules:
    yield "prompt", "prompt IS NULL", "is null"
    yield "prompt", f"NOT {NOT_BLANK.format('prompt')}", "is blank"
    reason = f"is over {MAX_PROMPT_CHARS} characters"
    for name in ("prompt", "negative_prompt"):
        yield name, f"length({name}) > {MAX_PROMPT_CHARS}", reason


def _size_rules(job: Job, multiple: int) -> Rules:
    for name in ("width", "height"):
        condition = f"({name} NOT BETWEEN {multiple} AND {MAX_SIDE} OR {name} % {multiple} <> 0)"
        yield name, condition, f"is not a positive multiple of {multiple}, which this model needs"
    limit = MAX_SIDES.get(job.encoding.kind, MAX_SIDE)
    if limit < MAX_SIDE:
        reason = f"is over {limit} pixels, the most that {job.encoding.kind} holds"
        yield "width", f"width > {limit}", reason
        yield "height", f"height > {limit}", reason
    reason = f"times height is over {MAX_IMAGE_PIXELS} pixels"
    yield "width", f"width * height > {MAX_IMAGE_PIXELS}", reason


def _setting_rules(fit: SamplerFit) -> Rules:
    # Not in the order of the columns: a row that breaks several rules is rejected for the first.
    yield _bounds_rule("steps")
    yield _bounds_rule("guidance")
    for fault, reason in LORA_REJECTION_TEXTS.items():
        yield "loras", f"lora_fault = '{fault}'", reason
    yield _bounds_rule("images")
    yield _bounds_rule("seed", expression="row_seed")
    yield "sampler", _is_none_of(SAMPLERS), f"is none of {', '.join(SAMPLERS)}"
    if fit.samplers != SAMPLERS:
        reason = f"does not fit the model: {_describe_fit(fit)}"
        yield "sampler", _is_none_of(fit.samplers), reason


def _guidance_rules(model: ModelFacts, sizes: PassSizes | None) -> Rules:
    call = model.own.call
    if not model.own.reads_guidance:
        yield "guidance", "guidance IS NOT NULL", NO_EFFECT
    if call.schedule_steps is not None:
        condition = f"guidance IS NULL AND steps <> {call.schedule_steps}"
        reason = f"is not {call.schedule_steps}, for which the model has guidance; set guidance"
        yield "steps", condition, reason
    facts = () if sizes is None else sizes.facts.values()
    if any(own.model and own.model.own.call.takes_negative_prompt for own in facts):
        return  # the model of a pass reads them
    condition = NOT_BLANK.format("negative_prompt")
    reason = NO_EFFECT
    if call.takes_negative_prompt and call.guided_above is not None:
        condition += f" AND guidance <= {call.guided_above}"
        reason = reason.replace(":", f" with guidance up to {call.guided_above:g}:", 1)
    if call is not UNKNOWN_CALL:
        yield "negative_prompt", condition, reason


def _pass_rules(job: Job, sizes: PassSizes | None) -> Rules:
    if sizes is None or not sizes.alters_images:
        return
    limit = min(MAX_SIDES.get(job.encoding.kind, MAX_SIDE), MAX_SIDE)
    width = sizes.final_side_sql("width")
    height = sizes.final_side_sql("height")
    reason = f"is over {limit} pixels after the passes"
    yield "width", f"{width} > {limit}", reason
    yield "height", f"{height} > {limit}", reason
    reason = f"times height is over {MAX_IMAGE_PIXELS} pixels after the passes"
    yield "width", f"{width} * {height} > {MAX_IMAGE_PIXELS}", reason
    for name, settings in job.passes.items():
        if isinstance(settings, RefinePass) and settings.steps is None:
            reason = f"times the strength of the pass {name} is under 1, which leaves nothing"
            yield "steps", f"floor(steps * {settings.strength!r}) < 1", reason


def _pass_sampler_rules(job: Job, pass_fits: Mapping[str, SamplerFit]) -> Rules:
    """Rules for the samplers that passes take from rows."""
    for name, fit in pass_fits.items():
        settings = job.passes[name]
        takes_over = isinstance(settings, RefinePass) and settings.sampler is None
        if takes_over and fit.samplers != SAMPLERS:
            reason = f"does not fit the model of the pass {name}: {_describe_fit(fit)}"
            yield "sampler", _is_none_of(fit.samplers), reason


def _is_none_of(samplers: tuple[str, ...]) -> str:
    # NOT IN becomes a join, after which DuckDB does not keep the order of rows.
    names = ", ".join(f"'{name}'" for name in samplers)
    return f"list_position([{names}], sampler) IS NULL"


def _bounds_rule(column: str, expression: str | None = None) -> tuple[str, str, str]:
    lowest, highest = COLUMN_BOUNDS[column].lowest, COLUMN_BOUNDS[column].highest
    condition = f"{expression or column} NOT BETWEEN {lowest} AND {highest}"
    return column, condition, f"is not between {lowest} and {highest}"


def _input_image_rules(job: Job, model: ModelFacts) -> Rules:
    for name in INPUT_IMAGE_COLUMNS:
        for fault, reason in IMAGE_FAULT_REASONS.items():
            yield name, f"wrong = '{name} {fault}'", reason
    variants = family_of(model.pipeline)
    missing_mode = f"is not supported: {model.pipeline} has no"
    support = {
        "source_image": (variants.image_to_image, f"{missing_mode} image-to-image mode"),
        "mask_image": (variants.inpaint, f"{missing_mode} inpainting mode"),
        "control_image": (job.model.controlnet, "needs model.controlnet"),
        "reference_image": (job.model.ip_adapter, "needs model.ip_adapter"),
    }
    for column, (is_supported, reason) in support.items():
        if not is_supported:
            yield column, f"{column} IS NOT NULL", reason
    if conflict := _control_conflict(job, variants):
        condition = "control_image IS NOT NULL AND source_image IS NOT NULL"
        reason = f"cannot be combined with {conflict}: {model.pipeline} does not support it"
        yield "control_image", condition, reason
    for name in ("mask_image", "strength"):
        condition = f"{name} IS NOT NULL AND source_image IS NULL"
        yield name, condition, "is given without a source_image"
    yield "strength", "strength <= 0 OR strength > 1", "is not over 0 and up to 1"
    reason = "times steps is under 1, which leaves nothing to draw"
    yield "strength", "strength * steps < 1", reason


def _control_conflict(job: Job, variants: Family) -> str | None:
    if not variants.controlnet:
        return None
    if not variants.control_with_source:
        return "a source_image"
    if job.model.ip_adapter is not None and not variants.control_source_and_reference:
        return "a source_image and an IP-Adapter"
    return None
