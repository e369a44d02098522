"""Steps and guidance of an image whose row states none: the job's, or else the model's own."""

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.runtime.figures import pluralize


def default_steps(job: Job, facts: ModelFacts) -> int:
    """The steps of an image whose row states none. Raises BadInput where nothing says them."""
    steps = job.defaults.steps or facts.own.steps
    if steps is None:
        raise BadInput(
            f"{job.model.id}: {facts.own.source}. Set defaults.steps and defaults.guidance."
        )
    return steps


def default_guidance(job: Job, facts: ModelFacts) -> float | None:
    """The guidance of an image whose row states none; None where the model reads no number."""
    guidance = job.defaults.guidance
    if guidance is None or not facts.own.reads_guidance:
        return facts.own.guidance
    return guidance + 0.0  # never -0.0


def describe_defaults(job: Job, facts: ModelFacts) -> str:
    """What a row that states nothing is drawn with, and where that is from."""
    steps_text = pluralize(default_steps(job, facts), "step")
    guidance_text = _describe_guidance(job, facts)
    steps_source = facts.own.source if job.defaults.steps is None else "the job"
    guidance_source = steps_source
    if default_guidance(job, facts) is not None:
        guidance_source = facts.own.source if job.defaults.guidance is None else "the job"
    if steps_source == guidance_source:
        return f"{steps_text}, {guidance_text} ({steps_source})"
    return f"{steps_text} ({steps_source}), {guidance_text} ({guidance_source})"


def _describe_guidance(job: Job, facts: ModelFacts) -> str:
    guidance = default_guidance(job, facts)
    if guidance is not None:
        return f"guidance {guidance:g}"
    return "no guidance" if facts.own.schedule_steps is None else "its own schedule of guidance"
