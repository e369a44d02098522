"""Why a prompt row is rejected. Each rule is a condition in SQL: one pass checks all rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import MAX_SIDES
from imagekiln.steps.job.passes import RefinePass
from imagekiln.steps.job.samplers import SAMPLERS
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.families import FamilyVariants, variants_of
from imagekiln.steps.models.loras import LORA_REJECTION_TEXTS
from imagekiln.steps.models.own_settings import names_distilled_model
from imagekiln.steps.models.passes import PASSES_PREFIX, PassSizes
from imagekiln.steps.models.pipeline_calls import UNKNOWN_CALL
from imagekiln.steps.models.samplers import SamplerFit
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


@dataclass(frozen=True, slots=True)
class RejectionRule:
    """A row for which `condition` holds is rejected, for this column and reason."""

    column: str
    condition: str
    reason: str


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
    samplers of diffusion models that are passes' own. Raises BadInput where a default breaks a
    rule: that is a mistake of the job, not of all its rows.
    """
    fit = fit or SamplerFit()
    _check_defaults(job, model)
    _check_few_step_loras(job)
    _check_samplers(job, fit, pass_fits)
    return (
        *_cell_rules(len(job.carry)),
        *_size_rules(job, model.size_multiple),
        *_setting_rules(fit),
        *_guidance_rules(model, sizes),
        *_pass_rules(job, sizes),
        *_pass_sampler_rules(job, pass_fits),
        *_input_image_rules(job, model),
    )


def _check_defaults(job: Job, model: ModelFacts) -> None:
    defaults = job.defaults
    multiple = model.size_multiple
    for name, side in (("width", defaults.width), ("height", defaults.height)):
        if side is not None and (side % multiple or side > MAX_SIDE):
            nearest = min(max(1, round(side / multiple)), MAX_SIDE // multiple) * multiple
            raise BadInput(
                f"defaults.{name} is {side}; this model needs a multiple of {multiple}. "
                f"Set it to {nearest}."
            )
    pixels = (defaults.width or 0) * (defaults.height or 0)
    if pixels > MAX_IMAGE_PIXELS:
        raise BadInput(
            f"defaults.width times defaults.height is {pixels}; an image has at most "
            f"{MAX_IMAGE_PIXELS} pixels. Lower one of them."
        )
    if len(defaults.negative_prompt) > MAX_PROMPT_CHARS:
        raise BadInput(
            f"defaults.negative_prompt has {len(defaults.negative_prompt)} characters, and "
            f"{MAX_PROMPT_CHARS} are allowed. Shorten it."
        )


def _check_few_step_loras(job: Job) -> None:
    """Raise BadInput where a LoRA is made for a number of steps that only its user knows."""
    if job.defaults.steps is not None and job.defaults.guidance is not None:
        return
    for name, lora in job.model.loras.items():
        if any(map(names_distilled_model, filter(None, (lora.id, lora.weight_name)))):
            raise BadInput(
                f"model.loras.{name}: is called as LoRAs for few steps are. Set defaults.steps and "
                "defaults.guidance, as its authors say."
            )


def _check_samplers(job: Job, fit: SamplerFit, pass_fits: Mapping[str, SamplerFit]) -> None:
    default = job.defaults.sampler
    if default not in fit.samplers:
        raise BadInput(f"defaults.sampler is {default}; {_describe_fit(fit)}. Set one of these.")
    for name, settings in job.passes.items():
        if not isinstance(settings, RefinePass):
            continue
        setting = f"{PASSES_PREFIX}{name}.sampler"
        pass_fit = pass_fits.get(name, fit)
        if settings.sampler is not None and settings.sampler not in pass_fit.samplers:
            raise BadInput(
                f"{setting} is {settings.sampler}; {_describe_fit(pass_fit)}. Set one of these."
            )
        if settings.sampler is None and default not in pass_fit.samplers:
            raise BadInput(
                f"defaults.sampler is {default}, which the pass {name} would take over; "
                f"{_describe_fit(pass_fit)}. Set {setting} to one of these."
            )


def _describe_fit(fit: SamplerFit) -> str:
    return f"with the model's {fit.scheduler} work {', '.join(fit.samplers)}"


def _cell_rules(carried: int) -> Iterator[RejectionRule]:
    for column in PROMPT_COLUMNS:
        if column.kind != "image":
            reason = INVALID_VALUE_REASONS[column.kind]
            yield RejectionRule(
                column.name,
                f"wrong = '{column.name}'",
                reason,
            )
    for name in passthrough_names(carried):
        yield RejectionRule(name, f"wrong = '{name}'", NOT_UTF8)
    yield RejectionRule("prompt", "prompt IS NULL", "is null")
    yield RejectionRule(
        "prompt",
        r"NOT regexp_matches(prompt, '[^\s\p{Z}]')",
        "is blank",
    )
    for name in ("prompt", "negative_prompt"):
        condition = f"length({name}) > {MAX_PROMPT_CHARS}"
        yield RejectionRule(
            name,
            condition,
            f"is over {MAX_PROMPT_CHARS} characters",
        )


def _size_rules(job: Job, multiple: int) -> Iterator[RejectionRule]:
    for name in ("width", "height"):
        yield RejectionRule(
            name,
            f"({name} NOT BETWEEN {multiple} AND {MAX_SIDE} OR {name} % {multiple} <> 0)",
            f"is not a positive multiple of {multiple}, which this model needs",
        )
    limit = MAX_SIDES.get(job.encoding.kind, MAX_SIDE)
    if limit < MAX_SIDE:
        reason = f"is over {limit} pixels, the most that {job.encoding.kind} holds"
        yield RejectionRule("width", f"width > {limit}", reason)
        yield RejectionRule("height", f"height > {limit}", reason)
    reason = f"times height is over {MAX_IMAGE_PIXELS} pixels"
    yield RejectionRule(
        "width",
        f"width * height > {MAX_IMAGE_PIXELS}",
        reason,
    )


def _setting_rules(fit: SamplerFit) -> Iterator[RejectionRule]:
    # Not in the order of the columns: a row that breaks several rules is rejected for the first.
    yield _bounds_rule("steps")
    yield _bounds_rule("guidance")
    for fault, reason in LORA_REJECTION_TEXTS.items():
        yield RejectionRule("loras", f"lora_fault = '{fault}'", reason)
    yield _bounds_rule("images")
    yield _bounds_rule("seed", expression="row_seed")
    known = ", ".join(SAMPLERS)
    yield RejectionRule(
        "sampler",
        _is_none_of(SAMPLERS),
        f"is none of {known}",
    )
    if fit.samplers != SAMPLERS:
        reason = f"does not fit the model: {_describe_fit(fit)}"
        yield RejectionRule(
            "sampler",
            _is_none_of(fit.samplers),
            reason,
        )


def _guidance_rules(model: ModelFacts, sizes: PassSizes | None) -> Iterator[RejectionRule]:
    """Rules for what would have no effect, though the image would say so."""
    call = model.own.call
    if not model.own.reads_guidance:
        yield RejectionRule("guidance", "guidance IS NOT NULL", NO_EFFECT)
    if call.schedule_steps is not None:
        condition = f"guidance IS NULL AND steps <> {call.schedule_steps}"
        reason = f"is not {call.schedule_steps}, for which the model has guidance; set guidance"
        yield RejectionRule("steps", condition, reason)
    facts = () if sizes is None else sizes.facts.values()
    if any(own.model and own.model.own.call.takes_negative_prompt for own in facts):
        return  # the model of a pass reads them
    condition = r"regexp_matches(negative_prompt, '[^\s\p{Z}]')"
    reason = NO_EFFECT
    if call.takes_negative_prompt and call.guided_above is not None:
        condition += f" AND guidance <= {call.guided_above}"
        reason = reason.replace(
            ":",
            f" with guidance up to {call.guided_above:g}:",
            1,
        )
    if call is not UNKNOWN_CALL:
        yield RejectionRule(
            "negative_prompt",
            condition,
            reason,
        )


def _pass_rules(job: Job, sizes: PassSizes | None) -> Iterator[RejectionRule]:
    """Rules for the size that passes give, and for what they leave of the steps."""
    if sizes is None or not sizes.alters_images:
        return
    limit = min(MAX_SIDES.get(job.encoding.kind, MAX_SIDE), MAX_SIDE)
    final = {name: sizes.final_side_sql(name) for name in ("width", "height")}
    for name, side in final.items():
        reason = f"is over {limit} pixels after the passes"
        yield RejectionRule(name, f"{side} > {limit}", reason)
    reason = f"times height is over {MAX_IMAGE_PIXELS} pixels after the passes"
    area = f"{final['width']} * {final['height']}"
    yield RejectionRule("width", f"{area} > {MAX_IMAGE_PIXELS}", reason)
    for name, settings in job.passes.items():
        if isinstance(settings, RefinePass) and settings.steps is None:
            reason = f"times the strength of the pass {name} is under 1, which leaves nothing"
            yield RejectionRule(
                "steps",
                f"floor(steps * {settings.strength!r}) < 1",
                reason,
            )


def _pass_sampler_rules(job: Job, pass_fits: Mapping[str, SamplerFit]) -> Iterator[RejectionRule]:
    """Rules for the samplers that passes take over from rows."""
    for name, fit in pass_fits.items():
        settings = job.passes[name]
        takes_over = isinstance(settings, RefinePass) and settings.sampler is None
        if takes_over and fit.samplers != SAMPLERS:
            reason = f"does not fit the model of the pass {name}: {_describe_fit(fit)}"
            yield RejectionRule("sampler", _is_none_of(fit.samplers), reason)


def _is_none_of(samplers: tuple[str, ...]) -> str:
    # NOT IN becomes a join, after which DuckDB does not keep the order of rows.
    names = ", ".join(f"'{name}'" for name in samplers)
    return f"list_position([{names}], sampler) IS NULL"


def _bounds_rule(column: str, expression: str | None = None) -> RejectionRule:
    bounds = COLUMN_BOUNDS[column]
    return RejectionRule(
        column,
        f"{expression or column} NOT BETWEEN {bounds.lowest} AND {bounds.highest}",
        f"is not between {bounds.lowest} and {bounds.highest}",
    )


def _input_image_rules(job: Job, model: ModelFacts) -> Iterator[RejectionRule]:
    for name in INPUT_IMAGE_COLUMNS:
        for fault, reason in IMAGE_FAULT_REASONS.items():
            yield RejectionRule(name, f"wrong = '{name} {fault}'", reason)
    yield from _unsupported_input_rules(job, model.pipeline)
    for name in ("mask_image", "strength"):
        condition = f"{name} IS NOT NULL AND source_image IS NULL"
        yield RejectionRule(name, condition, "is given without a source_image")
    yield RejectionRule(
        "strength",
        "strength <= 0 OR strength > 1",
        "is not over 0 and up to 1",
    )
    yield RejectionRule(
        "strength", "strength * steps < 1", "times steps is under 1, which leaves nothing to draw"
    )


def _unsupported_input_rules(job: Job, pipeline: str) -> Iterator[RejectionRule]:
    variants = variants_of(pipeline)
    reasons: dict[str, str] = {}
    if not variants.image_to_image:
        reasons["source_image"] = f"is not supported: {pipeline} has no image-to-image mode"
    if not variants.inpaint:
        reasons["mask_image"] = f"is not supported: {pipeline} has no inpainting mode"
    if not job.model.controlnet:
        reasons["control_image"] = "needs model.controlnet"
    if not job.model.ip_adapter:
        reasons["reference_image"] = "needs model.ip_adapter"
    for column, reason in reasons.items():
        yield RejectionRule(column, f"{column} IS NOT NULL", reason)
    if conflict := _control_conflict(job, variants):
        yield RejectionRule(
            "control_image",
            "control_image IS NOT NULL AND source_image IS NOT NULL",
            f"cannot be combined with {conflict}: {pipeline} does not support it",
        )


def _control_conflict(job: Job, variants: FamilyVariants) -> str | None:
    """What a control image cannot be combined with; None where there is no such thing."""
    if not variants.controlnet:
        return None
    if not variants.control_with_source:
        return "a source_image"
    if job.model.ip_adapter is not None and not variants.control_source_and_reference:
        return "a source_image and an IP-Adapter"
    return None
