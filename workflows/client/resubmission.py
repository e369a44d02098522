"""A workflow's work once more, after it has ended: under a name of its own, with what the first was given."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import parse_moment, parse_time_zone
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.failures import AlreadyExists
from imagekiln.workflows.client.status import (
    FAILED_PHASES,
    WorkflowStatus,
    has_ended,
    read_available_status,
    read_status,
)
from imagekiln.workflows.objects import Json, object_identity, object_metadata
from imagekiln.workflows.templates.child_workflows import PARENT_LABEL
from imagekiln.workflows.templates.workflow import API_VERSION, JOB_LABEL

MAX_RESUBMISSIONS = 100  # of one job, after failures
RESUBMIT_INFIX = "-again-"
MAX_NAME_CHARS = 60  # Argo takes names of 63 signs, and further workflows add up to three
SCHEDULED_TIME_ANNOTATION = (
    "workflows.argoproj.io/scheduled-time"  # by it, a workflow of a schedule knows its date
)


def resubmit_workflow(there: Json, argo: ArgoApi) -> WorkflowStatus:
    """Go on with a workflow's work: under the first name that is free, unless the one that has it still may succeed."""
    about = object_metadata(there)
    if parts := running_children(str(about["name"]), str(about["namespace"]), argo):
        raise BadInput(
            f"{parts[0]}: is still running, as part of {about['name']}. Wait for it, or stop {about['name']}."
        )
    first = _shorten_name(str(about["name"]).partition(RESUBMIT_INFIX)[0])
    spec = {key: value for key, value in cast("Json", there["spec"]).items() if key != "shutdown"}
    kept = {"namespace": about["namespace"]} | {
        key: _without_argo_state(about.get(key)) for key in ("labels", "annotations")
    }
    for number in range(2, MAX_RESUBMISSIONS):
        name = f"{first}{RESUBMIT_INFIX}{number}"
        # Argo's server does not say of what kind its answer is.
        made: Json = {
            "apiVersion": API_VERSION,
            "kind": "Workflow",
            "metadata": kept | {"name": name},
            "spec": spec,
        }
        try:
            return read_status(argo.create(made))
        except AlreadyExists:
            found = read_available_status(argo.get(*object_identity(made)))
            if found.phase not in FAILED_PHASES:
                return found
    raise BadInput(
        f"{first}: failed {MAX_RESUBMISSIONS} times. See why, then delete these workflows."
    )


def running_children(name: str, namespace: str, argo: ArgoApi) -> list[str]:
    """The further workflows of one that have not ended: Argo lets them go on when that one is stopped or fails."""
    found = argo.list_objects("Workflow", namespace, f"{PARENT_LABEL}={name}")
    return [str(object_metadata(each)["name"]) for each in found if not has_ended(each)]


def _shorten_name(name: str) -> str:
    """A workflow's name, with room for what numbers its tries; one that is cut short stays apart from its like."""
    if len(name) + len(f"{RESUBMIT_INFIX}{MAX_RESUBMISSIONS}") <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return (
        f"{name[: MAX_NAME_CHARS - len(f'-{digest}{RESUBMIT_INFIX}{MAX_RESUBMISSIONS}')]}-{digest}"
    )


def _without_argo_state(given: object) -> dict[str, str]:
    """Labels or annotations without those that Argo keeps its own state in."""
    kept = {
        "workflows.argoproj.io/title",
        "workflows.argoproj.io/description",
        SCHEDULED_TIME_ANNOTATION,
    }
    pairs = cast("dict[str, str]", given or {}).items()
    return {
        key: value
        for key, value in pairs
        if key in kept or not key.startswith("workflows.argoproj.io/")
    }


MAX_RETRIES_OF_JOB = 100  # of one job


def require_not_running(made: Json, argo: ArgoApi) -> None:
    """Raise BadInput while the workflow, one that goes on with it, or the same firing of a schedule, is under way."""
    job = cast("dict[str, str]", object_metadata(made)["labels"])[JOB_LABEL]
    for each in argo.list_objects("Workflow", object_identity(made)[1], f"{JOB_LABEL}={job}"):
        if not has_ended(each) and _requested_parameters(each) == _requested_parameters(made):
            raise BadInput(
                f"{object_metadata(each)['name']}: is still running. Wait for it, or stop it, before a retry."
            )


def start_retry(workflow: Callable[[int], Json], argo: ArgoApi) -> WorkflowStatus:
    """Start a retry under the first name that is free, unless one that has such a name is still under way."""
    for made in map(workflow, range(1, MAX_RETRIES_OF_JOB + 1)):
        try:
            return read_status(argo.create(made))
        except AlreadyExists:
            found = read_available_status(argo.get(*object_identity(made)))
            if not found.ended:
                return found
    raise BadInput(
        f"there are {MAX_RETRIES_OF_JOB} retries of this job. See why, then delete their workflows."
    )


def _requested_parameters(workflow: Json) -> dict[str, str]:
    """What a workflow's parameters ask for, with its date as a moment in UTC."""
    parameters = (
        cast("Json", cast("Json", workflow["spec"]).get("arguments") or {}).get("parameters") or []
    )
    given = {
        each["name"]: each.get("value", "") for each in cast("list[dict[str, str]]", parameters)
    }
    fired = cast("dict[str, str]", object_metadata(workflow).get("annotations") or {}).get(
        SCHEDULED_TIME_ANNOTATION
    )
    if date := fired or given.get("logical-date"):
        with suppress(BadInput):  # the workflow itself says what is wrong with its date
            at = parse_moment(date, parse_time_zone(given.get("timezone", "")))
            given["logical-date"] = at.astimezone(UTC).isoformat()
    return given
