"""Retries of a job on a cluster: one at a time, each under a name of its own."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from typing import cast

from imagekiln.steps.dated import moment, time_zone
from imagekiln.steps.errors import BadInput
from imagekiln.workflows import status
from imagekiln.workflows.argo import Argo, identity, metadata
from imagekiln.workflows.connection import Json
from imagekiln.workflows.next_tries import SCHEDULED
from imagekiln.workflows.refusals import Taken
from imagekiln.workflows.status import Status
from imagekiln.workflows.submission import JOB

MOST = 100  # of one job


def refuse_running(made: Json, argo: Argo) -> None:
    """Raise BadInput while the workflow, one that goes on with it, or the same firing of a schedule, is under way."""
    job = cast("dict[str, str]", metadata(made)["labels"])[JOB]
    for each in argo.find("Workflow", identity(made)[1], f"{JOB}={job}"):
        if not status.has_ended(each) and _asked(each) == _asked(made):
            raise BadInput(f"{metadata(each)['name']}: is still running. Wait for it, or stop it, before a retry.")


def begin(workflow: Callable[[int], Json], argo: Argo) -> Status:
    """Start a retry under the first name that is free, unless one that has such a name is still under way."""
    for made in map(workflow, range(1, MOST + 1)):
        try:
            return status.status(argo.create(made))
        except Taken:
            found = status.listed(argo.get(*identity(made)))
            if not found.ended:
                return found
    raise BadInput(f"there are {MOST} retries of this job. See why, then delete their workflows.")


def _asked(workflow: Json) -> dict[str, str]:
    """What a workflow's parameters ask for, with its date as a moment in UTC."""
    parameters = cast("Json", cast("Json", workflow["spec"]).get("arguments") or {}).get("parameters") or []
    given = {each["name"]: each.get("value", "") for each in cast("list[dict[str, str]]", parameters)}
    fired = cast("dict[str, str]", metadata(workflow).get("annotations") or {}).get(SCHEDULED)
    if date := fired or given.get("logical-date"):
        with suppress(BadInput):  # the workflow itself says what is wrong with its date
            at = moment(date, time_zone(given.get("timezone", "")))
            given["logical-date"] = at.astimezone(UTC).isoformat()
    return given
