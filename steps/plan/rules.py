"""Why a prompt row is refused. Each rule is one line of SQL, so that ten million rows are judged in a pass."""

from dataclasses import dataclass

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.input_images import (
    IMAGE_REJECTION_REASONS,
    INPUT_IMAGE_FORMATS,
    ImageRejectionReason,
)
from imagekiln.steps.job.job import Job, JobLimits
from imagekiln.steps.job.output import MAX_SIDES, Encoding
from imagekiln.steps.job.samplers import SAMPLERS
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.families import variants_of
from imagekiln.steps.models.loras import LORA_REJECTION_TEXTS
from imagekiln.steps.plan.columns import PASSTHROUGH_MARK, PROMPT_COLUMNS
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS

MAX_IMAGES_PER_ROW = 10_000
INVALID_VALUE_REASONS = {
    "text": "is no UTF-8",
    "integer": "is no integer of 64 bits",
    "number": "is no number",
}
MAX_SIDE = 65_536
MAX_SEED = 2**63 - 1 - MAX_IMAGES_PER_ROW  # seed + image index still fits 64 bits


@dataclass(frozen=True, slots=True)
class RejectionRule:
    """A row for which `broken` holds is refused, for this column and reason."""

    column: str
    condition: str
    reason: str


SAME_ID_RULE = RejectionRule("id", "", "another row before it has this id and other content")


def prompt_rules(job: Job, model: ModelFacts) -> tuple[RejectionRule, ...]:
    """The rules of a job, in the order in which a row is judged by them.

    Raises BadInput where a default breaks one: that is a mistake of the job, not of all its rows.
    """
    _check_defaults(job, model)
    limits = job.limits
    wrong = tuple(
        RejectionRule(name, f"wrong = '{name}'", INVALID_VALUE_REASONS[kind])
        for name, kind in PROMPT_COLUMNS.items()
        if kind in INVALID_VALUE_REASONS
    )
    names = ", ".join(f"'{name}'" for name in SAMPLERS)
    return (
        *wrong,
        RejectionRule(
            PASSTHROUGH_MARK,
            f"wrong = '{PASSTHROUGH_MARK}'",
            f"{INVALID_VALUE_REASONS['text']} in one of its columns",
        ),
        RejectionRule("prompt", "prompt IS NULL", "is null"),
        RejectionRule("prompt", r"NOT regexp_matches(prompt, '[^\s\p{Z}]')", "is blank"),
        RejectionRule(
            "prompt",
            f"length(prompt) > {limits.prompt_chars}",
            f"is over {limits.prompt_chars} characters",
        ),
        RejectionRule(
            "negative_prompt",
            f"length(negative_prompt) > {limits.prompt_chars}",
            f"is over {limits.prompt_chars} characters",
        ),
        *(_side_rule(name, model.size_multiple) for name in ("width", "height")),
        *_encoding_side_rules(job.encoding),
        RejectionRule(
            "width",
            f"width * height > {limits.pixels}",
            f"times height is over {limits.pixels} pixels",
        ),
        RejectionRule("steps", "steps NOT BETWEEN 1 AND 1000", "is not between 1 and 1000"),
        RejectionRule("guidance", "guidance NOT BETWEEN 0 AND 100", "is not between 0 and 100"),
        *(
            RejectionRule("loras", f"lora_fault = '{fault}'", reason)
            for fault, reason in LORA_REJECTION_TEXTS.items()
        ),
        RejectionRule(
            "images",
            f"images NOT BETWEEN 1 AND {MAX_IMAGES_PER_ROW}",
            f"is not between 1 and {MAX_IMAGES_PER_ROW}",
        ),
        RejectionRule(
            "seed", f"row_seed NOT BETWEEN 0 AND {MAX_SEED}", f"is not between 0 and {MAX_SEED}"
        ),
        # NOT IN becomes a join, after which DuckDB keeps rows in no order.
        RejectionRule(
            "sampler",
            f"list_position([{names}], sampler) IS NULL",
            f"is none of {', '.join(SAMPLERS)}",
        ),
    )


def first_violation_sql(all_rules: tuple[RejectionRule, ...]) -> str:
    """The place of the first rule that a row breaks, or null."""
    cases = " ".join(f"WHEN {rule.condition} THEN {place}" for place, rule in enumerate(all_rules))
    return f"CAST(CASE {cases} END AS INTEGER)"


def _side_rule(name: str, multiple: int) -> RejectionRule:
    broken = f"({name} NOT BETWEEN {multiple} AND {MAX_SIDE} OR {name} % {multiple} <> 0)"
    return RejectionRule(
        name, broken, f"is not a positive multiple of {multiple}, which this model needs"
    )


def _encoding_side_rules(encoding: Encoding) -> tuple[RejectionRule, ...]:
    most = MAX_SIDES.get(encoding.kind, MAX_SIDE)
    said = f"is over {most} pixels, the most that {encoding.kind} holds"
    return (
        tuple(RejectionRule(name, f"{name} > {most}", said) for name in ("width", "height"))
        if most < MAX_SIDE
        else ()
    )


def _check_defaults(job: Job, model: ModelFacts) -> None:
    given, limits, multiple = job.defaults, job.limits, model.size_multiple
    for name, side in (("width", given.width), ("height", given.height)):
        if side is not None and (side % multiple or side > MAX_SIDE):
            near = min(max(1, round(side / multiple)), MAX_SIDE // multiple) * multiple
            raise BadInput(
                f"defaults.{name} is {side}; this model needs a multiple of {multiple}. Write {near}."
            )
    if given.width and given.height and given.width * given.height > limits.pixels:
        raise BadInput(
            f"defaults.width times defaults.height is {given.width * given.height}; limits.pixels allows "
            f"{limits.pixels}. Change one of them."
        )
    if len(given.negative_prompt) > limits.prompt_chars:
        raise BadInput(
            f"defaults.negative_prompt has {len(given.negative_prompt)} characters; limits.prompt_chars allows "
            f"{limits.prompt_chars}. Change one of them."
        )


def input_image_rules(job: Job, model: ModelFacts) -> tuple[RejectionRule, ...]:
    """The rules for pictures and strength, in the order in which a row is judged by them."""
    reasons = _fault_reasons(job.limits)
    faults = (
        RejectionRule(name, f"wrong = '{name} {fault}'", reasons[fault])
        for name in INPUT_IMAGE_COLUMNS
        for fault in IMAGE_REJECTION_REASONS
    )
    return (
        *faults,
        *_unsupported_input_rules(job, model),
        RejectionRule(
            "mask_image",
            "mask_image IS NOT NULL AND source_image IS NULL",
            "is given without a source_image",
        ),
        RejectionRule(
            "strength",
            "strength IS NOT NULL AND source_image IS NULL",
            "is given without a source_image",
        ),
        RejectionRule("strength", "strength <= 0 OR strength > 1", "is not over 0 and up to 1"),
        RejectionRule(
            "strength",
            "strength * steps < 1",
            "times steps is under 1, which leaves nothing to draw",
        ),
    )


def _unsupported_input_rules(job: Job, model: ModelFacts) -> tuple[RejectionRule, ...]:
    known, name = variants_of(model.pipeline), model.pipeline
    useless = {
        "source_image": None
        if known.image_to_image
        else f"is of no use to {name}, which starts from no picture",
        "mask_image": None
        if known.inpaint
        else f"is of no use to {name}, which draws no part of a picture",
        "control_image": None if job.model.controlnet else "needs model.controlnet",
        "reference_image": None if job.model.ip_adapter else "needs model.ip_adapter",
    }
    rules = [
        RejectionRule(column, f"{column} IS NOT NULL", reason)
        for column, reason in useless.items()
        if reason
    ]
    if known.controlnet and not (
        known.control_with_source
        and (known.control_source_and_reference or job.model.ip_adapter is None)
    ):
        both = "control_image IS NOT NULL AND source_image IS NOT NULL"
        beside = (
            "a source_image and an IP-Adapter" if known.control_with_source else "a source_image"
        )
        rules.append(RejectionRule("control_image", both, f"does not go with {beside} for {name}"))
    return tuple(rules)


def _fault_reasons(limits: JobLimits) -> dict[ImageRejectionReason, str]:
    return {
        "place": "lies where this table may name no picture",
        "missing": "is not there, or may not be read",
        "bytes": f"has over {limits.picture_bytes} bytes",
        "format": f"is no picture in {', '.join(INPUT_IMAGE_FORMATS)}",
        "pixels": f"has over {limits.picture_pixels} pixels",
        "damaged": "is damaged, so that it does not decode",
    }
