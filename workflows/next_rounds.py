"""Retries of a job on a cluster: one at a time, each under a name of its own."""

from collections.abc import Callable
from contextlib import suppress

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows import status
from imagekiln.workflows.argo import Argo, identity
from imagekiln.workflows.connection import Json
from imagekiln.workflows.refusals import Taken
from imagekiln.workflows.status import Status

MOST = 100  # of one job


def refuse_running(workflow: tuple[str, str, str], argo: Argo) -> None:
    """Raise BadInput while the job's own workflow, of this kind, namespace and name, is under way."""
    with suppress(Missing):
        if not status.listed(argo.get(*workflow)).ended:
            raise BadInput(f"{workflow[2]}: is still running. Wait for it, or stop it, before a retry.")


def begin(workflow: Callable[[int], Json], argo: Argo) -> Status:
    """Start a retry under the first name that is free, unless one that has such a name is still under way."""
    for made in map(workflow, range(1, MOST)):
        try:
            return status.status(argo.create(made))
        except Taken:
            found = status.listed(argo.get(*identity(made)))
            if not found.ended:
                return found
    raise BadInput(f"there are {MOST} retries of this job. See why, then delete their workflows.")
