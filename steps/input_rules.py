"""Why a row is refused for its pictures: those that cannot be taken, and those that the model has no use for."""

from imagekiln.steps.cells import INPUT_IMAGE_COLUMNS
from imagekiln.steps.input_picture import IMAGE_REJECTION_REASONS, INPUT_IMAGE_FORMATS, ImageRejectionReason
from imagekiln.steps.job import Job, JobLimits
from imagekiln.steps.model import ModelFacts
from imagekiln.steps.rules import RejectionRule
from imagekiln.steps.siblings import variants_of


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
            "mask_image", "mask_image IS NOT NULL AND source_image IS NULL", "is given without a source_image"
        ),
        RejectionRule("strength", "strength IS NOT NULL AND source_image IS NULL", "is given without a source_image"),
        RejectionRule("strength", "strength <= 0 OR strength > 1", "is not over 0 and up to 1"),
        RejectionRule("strength", "strength * steps < 1", "times steps is under 1, which leaves nothing to draw"),
    )


def _unsupported_input_rules(job: Job, model: ModelFacts) -> tuple[RejectionRule, ...]:
    known, name = variants_of(model.pipeline), model.pipeline
    useless = {
        "source_image": None if known.image_to_image else f"is of no use to {name}, which starts from no picture",
        "mask_image": None if known.inpaint else f"is of no use to {name}, which draws no part of a picture",
        "control_image": None if job.model.controlnet else "needs model.controlnet",
        "reference_image": None if job.model.ip_adapter else "needs model.ip_adapter",
    }
    rules = [RejectionRule(column, f"{column} IS NOT NULL", reason) for column, reason in useless.items() if reason]
    if known.controlnet and not (
        known.control_with_source and (known.control_source_and_reference or job.model.ip_adapter is None)
    ):
        both = "control_image IS NOT NULL AND source_image IS NOT NULL"
        beside = "a source_image and an IP-Adapter" if known.control_with_source else "a source_image"
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
