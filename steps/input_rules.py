"""Why a row is refused for its pictures: those that cannot be taken, and those that the model has no use for."""

from imagekiln.steps.cells import PICTURES
from imagekiln.steps.input_picture import FAULTS, FORMATS, Fault
from imagekiln.steps.job import Job, Limits
from imagekiln.steps.model import ModelFacts
from imagekiln.steps.rules import Rule
from imagekiln.steps.siblings import siblings


def input_rules(job: Job, model: ModelFacts) -> tuple[Rule, ...]:
    """The rules for pictures and strength, in the order in which a row is judged by them."""
    reasons = _reasons(job.limits)
    faults = (Rule(name, f"wrong = '{name} {fault}'", reasons[fault]) for name in PICTURES for fault in FAULTS)
    return (
        *faults,
        *_of_no_use(job, model),
        Rule("mask_image", "mask_image IS NOT NULL AND source_image IS NULL", "is given without a source_image"),
        Rule("strength", "strength IS NOT NULL AND source_image IS NULL", "is given without a source_image"),
        Rule("strength", "strength <= 0 OR strength > 1", "is not over 0 and up to 1"),
        Rule("strength", "strength * steps < 1", "times steps is under 1, which leaves nothing to draw"),
    )


def _of_no_use(job: Job, model: ModelFacts) -> tuple[Rule, ...]:
    known, name = siblings(model.pipeline), model.pipeline
    useless = {
        "source_image": None if known.from_image else f"is of no use to {name}, which starts from no picture",
        "mask_image": None if known.inpaint else f"is of no use to {name}, which draws no part of a picture",
        "control_image": None if job.model.controlnet else "needs model.controlnet",
        "reference_image": None if job.model.ip_adapter else "needs model.ip_adapter",
    }
    rules = [Rule(column, f"{column} IS NOT NULL", reason) for column, reason in useless.items() if reason]
    if known.control and not (known.control_source and (known.all_three or job.model.ip_adapter is None)):
        both = "control_image IS NOT NULL AND source_image IS NOT NULL"
        beside = "a source_image and an IP-Adapter" if known.control_source else "a source_image"
        rules.append(Rule("control_image", both, f"does not go with {beside} for {name}"))
    return tuple(rules)


def _reasons(limits: Limits) -> dict[Fault, str]:
    return {
        "place": "lies where this table may name no picture",
        "missing": "is not there, or may not be read",
        "bytes": f"has over {limits.picture_bytes} bytes",
        "format": f"is no picture in {', '.join(FORMATS)}",
        "pixels": f"has over {limits.picture_pixels} pixels",
        "damaged": "is damaged, so that it does not decode",
    }
