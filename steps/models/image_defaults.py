"""Steps and guidance of an image whose row states none: the job's, or else the model's own."""

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.own_settings import NO_GUIDANCE
from imagekiln.steps.runtime.figures import pluralize


def default_steps(job: Job, facts: ModelFacts, setting: str = "defaults") -> int:
    """The steps of an image whose row states none. Raises BadInput if nothing says them."""
    steps = job.defaults.steps or facts.own.steps
    if steps is None:
        raise BadInput(
            f"{job.model.id}: {facts.own.source}. Set {setting}.steps and {setting}.guidance."
        )
    return steps


def default_guidance(job: Job, facts: ModelFacts) -> float | None:
    """The guidance of an image whose row states none; None if the model reads no number."""
    guidance = job.defaults.guidance
    if guidance is None or (guidance <= NO_GUIDANCE and not facts.own.reads_guidance):
        return facts.own.guidance
    return guidance + 0.0  # never -0.0


def describe_defaults(job: Job, facts: ModelFacts) -> str:
    """Describe the default steps and guidance, and their sources."""
    steps = pluralize(default_steps(job, facts), "step")
    number = default_guidance(job, facts)
    guidance = "no guidance" if number is None else f"guidance {number:g}"
    if number is None and facts.own.call.schedule_steps is not None:
        guidance = "its own schedule of guidance"
    if "steps" in job.swept:
        steps = "steps of the sweep"
    if "guidance" in job.swept:
        guidance = "guidance of the sweep"
    set_by_job = {*job.swept, *(name for name, value in job.defaults if value is not None)}
    names = ("steps", "guidance")
    sources = ["the job" if name in set_by_job else facts.own.source for name in names]
    if sources[0] == sources[1] or number is None:
        return f"{steps}, {guidance} ({sources[0]})"
    return f"{steps} ({sources[0]}), {guidance} ({sources[1]})"
