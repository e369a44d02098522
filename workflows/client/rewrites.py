"""Whether a job's prompts are rewritten, which no step of a workflow does."""

from collections.abc import Callable

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.rewritten_prompts import NotRewritten, require_rewritten


def check_rewritten(job: Job, report: Callable[[str], None]) -> None:
    """Raise BadInput where prompts of the job are still to be rewritten.

    Where that is not known here, such as without access to the store, `report` is called with why:
    planning will tell.
    """
    try:
        require_rewritten(job)
    except NotRewritten:
        raise
    except KilnError as error:
        report(f"Whether its prompts are rewritten is unknown from here: {error}")
