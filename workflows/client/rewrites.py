"""What a workflow rewrites before it plans a job, in a sentence."""

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.rewritten_prompts import count_prompts_to_rewrite
from imagekiln.steps.plan.step import is_planned
from imagekiln.steps.runtime.figures import pluralize


def describe_rewriting(job: Job) -> str | None:
    """How many prompts pods rewrite first, as far as this machine can tell; None if none."""
    if job.rewrite is None:
        return None
    try:
        if is_planned(job):
            return None
        missing = count_prompts_to_rewrite(job)
    except KilnError as error:
        return f"How many of its prompts are still to be rewritten is unknown from here: {error}"
    if not missing:
        return "All its prompts are rewritten already."
    return (
        f"First, a pod rewrites {pluralize(missing, 'prompt')} with {job.rewrite.model.id}; "
        "what that takes is in no estimate and counts for no budget."
    )
