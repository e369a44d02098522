"""Retries of a job on a cluster: one at a time, each under a name of its own."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from typing import cast

from imagekiln.steps.dated import parse_moment, parse_time_zone
from imagekiln.steps.errors import BadInput
from imagekiln.workflows import status
from imagekiln.workflows.argo import ArgoApi, object_identity, object_metadata
from imagekiln.workflows.connection import Json
from imagekiln.workflows.next_tries import SCHEDULED_TIME_ANNOTATION
from imagekiln.workflows.refusals import AlreadyExists
from imagekiln.workflows.status import WorkflowStatus
from imagekiln.workflows.submission import JOB_LABEL

MAX_RETRIES_OF_JOB = 100  # of one job


def require_not_running(made: Json, argo: ArgoApi) -> None:
    """Raise BadInput while the workflow, one that goes on with it, or the same firing of a schedule, is under way."""
    job = cast("dict[str, str]", object_metadata(made)["labels"])[JOB_LABEL]
    for each in argo.list_objects("Workflow", object_identity(made)[1], f"{JOB_LABEL}={job}"):
        if not status.has_ended(each) and _requested_parameters(each) == _requested_parameters(made):
            raise BadInput(
                f"{object_metadata(each)['name']}: is still running. Wait for it, or stop it, before a retry."
            )


def start_retry(workflow: Callable[[int], Json], argo: ArgoApi) -> WorkflowStatus:
    """Start a retry under the first name that is free, unless one that has such a name is still under way."""
    for made in map(workflow, range(1, MAX_RETRIES_OF_JOB + 1)):
        try:
            return status.read_status(argo.create(made))
        except AlreadyExists:
            found = status.read_available_status(argo.get(*object_identity(made)))
            if not found.ended:
                return found
    raise BadInput(f"there are {MAX_RETRIES_OF_JOB} retries of this job. See why, then delete their workflows.")


def _requested_parameters(workflow: Json) -> dict[str, str]:
    """What a workflow's parameters ask for, with its date as a moment in UTC."""
    parameters = cast("Json", cast("Json", workflow["spec"]).get("arguments") or {}).get("parameters") or []
    given = {each["name"]: each.get("value", "") for each in cast("list[dict[str, str]]", parameters)}
    fired = cast("dict[str, str]", object_metadata(workflow).get("annotations") or {}).get(SCHEDULED_TIME_ANNOTATION)
    if date := fired or given.get("logical-date"):
        with suppress(BadInput):  # the workflow itself says what is wrong with its date
            at = parse_moment(date, parse_time_zone(given.get("timezone", "")))
            given["logical-date"] = at.astimezone(UTC).isoformat()
    return given
