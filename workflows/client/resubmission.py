"""Resubmissions and retries: the work of a job again, as a workflow with another name.

A resubmission repeats a failed workflow with the same parameters: finished parts are kept, and
missing ones are made. A retry is a new workflow of the job that regenerates its failed, blank and
missing images. Argo retries single pods by `templates/pod_retries.py`.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import moment_in_utc
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import next_command
from imagekiln.workflows.client.http import AlreadyExists
from imagekiln.workflows.client.pods import FAILED_PHASES
from imagekiln.workflows.client.status import (
    WorkflowStatus,
    has_ended,
    read_available_status,
    read_status,
)
from imagekiln.workflows.objects import (
    Json,
    get_mapping,
    get_mappings,
    get_texts,
    object_identity,
    object_metadata,
    object_name,
    object_namespace,
)
from imagekiln.workflows.templates.dag import MAX_NAME_CHARS, PARENT_LABEL
from imagekiln.workflows.templates.workflow import API_VERSION, JOB_LABEL

RESUBMIT_INFIX = "-again-"
LONGEST_SUFFIX = f"{RESUBMIT_INFIX}999"
ARGO_PREFIX = "workflows.argoproj.io/"
NOT_COMPLETED = f"{ARGO_PREFIX}completed!=true"  # ended workflows are large and numerous
# A CronWorkflow stores the date of its workflows in this annotation.
SCHEDULED_TIME_ANNOTATION = f"{ARGO_PREFIX}scheduled-time"
# Labels in which Argo keeps a workflow's state. Argo's own resubmission omits the same.
STATE_LABELS = {
    f"{ARGO_PREFIX}{name}"
    for name in ("creator", "phase", "completed", "workflow-archiving-status")
}


def resubmit_workflow(workflow: Json, argo: ArgoApi) -> WorkflowStatus:
    """Run an ended workflow again, under the first free name.

    If an earlier resubmission runs or has succeeded, return that one instead. Raises BadInput while
    a child workflow still runs.
    """
    name, namespace = object_name(workflow), object_namespace(workflow)
    for child in running_children(name, namespace, argo):
        require_not_stopping(child)
        raise BadInput(
            f"{object_name(child)}: is still running, as a child of {name}. "
            f"Wait for it, or stop both: {next_command('stop', name, namespace)}."
        )

    base_name = _shorten_name(name.partition(RESUBMIT_INFIX)[0])
    return _create_first_free(
        lambda number: _copy_workflow(workflow, f"{base_name}{RESUBMIT_INFIX}{number}"),
        2,
        argo,
        lambda existing: existing.phase not in FAILED_PHASES,
    )


def running_children(name: str, namespace: str, argo: ArgoApi) -> list[Json]:
    """List the running child workflows, which Argo does not stop with their parent."""
    children = argo.list_objects("Workflow", namespace, f"{PARENT_LABEL}={name}")
    return [child for child in children if not has_ended(child)]


def is_stopping(workflow: Json) -> bool:
    """Return whether the workflow was stopped and has not ended yet."""
    return bool(get_mapping(workflow, "spec").get("shutdown")) and not has_ended(workflow)


def require_not_stopping(workflow: Json) -> None:
    """Raise BadInput if a workflow was stopped and has not ended yet."""
    if is_stopping(workflow):
        name = object_name(workflow)
        raise BadInput(
            f"{name}: is stopping. Wait for its end; if its last pods do not start, "
            f"{next_command('stop', name, object_namespace(workflow))} terminates it, which "
            "loses no image. Then run this again."
        )


def find_running_twin(workflow: Json, argo: ArgoApi) -> Json | None:
    """Find a running workflow that does the same work.

    This may be the job's own workflow, a resubmission of it, a scheduled workflow for the same
    date, or one named by another version of Imagekiln. Raises BadInput if it is being stopped.
    """
    _, namespace, _ = object_identity(workflow)
    labels = get_texts(workflow, "metadata", "labels")
    selector = f"{JOB_LABEL}={labels[JOB_LABEL]},{NOT_COMPLETED}"
    parameters = _normalized_parameters(workflow)
    for other in argo.list_objects("Workflow", namespace, selector):
        if not has_ended(other) and _normalized_parameters(other) == parameters:
            require_not_stopping(other)
            return other
    return None


def start_retry(build_retry: Callable[[int], Json], argo: ArgoApi) -> WorkflowStatus:
    """Start the job's next retry, or return the latest one if it still runs."""
    return _create_first_free(build_retry, 1, argo, lambda existing: not existing.ended)


def _create_first_free(
    build: Callable[[int], Json],
    first: int,
    argo: ArgoApi,
    is_acceptable: Callable[[WorkflowStatus], bool],
) -> WorkflowStatus:
    """Create the first workflow whose name is free, or return the first acceptable one.

    Names are tried in order, so two concurrent clients get the same workflow.
    """
    workflow = build(first)
    try:
        return read_status(argo.create(workflow))
    except AlreadyExists:
        existing = argo.get(*object_identity(workflow))
    require_not_stopping(existing)
    status = read_available_status(existing)
    if is_acceptable(status):
        return status
    return _create_first_free(build, first + 1, argo, is_acceptable)


def _copy_workflow(workflow: Json, name: str) -> Json:
    """Copy a workflow under another name, without the state of its end."""
    metadata = object_metadata(workflow)
    labels = get_texts(metadata, "labels")
    spec = dict(get_mapping(workflow, "spec"))
    spec.pop("shutdown", None)
    # Argo's server omits apiVersion and kind.
    return {
        "apiVersion": API_VERSION,
        "kind": "Workflow",
        "metadata": {
            "namespace": metadata["namespace"],
            "labels": {key: labels[key] for key in labels.keys() - STATE_LABELS},
            "annotations": get_texts(metadata, "annotations"),
            "name": name,
            "ownerReferences": _schedules(metadata),
        },
        "spec": spec,
    }


def _schedules(metadata: Json) -> list[Json]:
    """Return the schedule that owns a workflow, by which Argo knows that a run is running.

    Owners that are workflows are omitted, since deleting them deletes what they own.
    """
    # Setting blockOwnerDeletion requires a right that few users have.
    return [
        {key: value for key, value in owner.items() if key != "blockOwnerDeletion"}
        for owner in get_mappings(metadata, "ownerReferences")
        if owner.get("kind") == "CronWorkflow"
    ]


def _shorten_name(name: str) -> str:
    """Shorten a name to leave room for a suffix. A digest keeps it unique."""
    if len(name) + len(LONGEST_SUFFIX) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    prefix_chars = MAX_NAME_CHARS - len(f"-{digest}{LONGEST_SUFFIX}")
    return f"{name[:prefix_chars]}-{digest}"


def _normalized_parameters(workflow: Json) -> dict[str, str]:
    """Return a workflow's parameters, with its date in UTC, so that equal work compares equal."""
    parameters = get_mappings(workflow, "spec", "arguments", "parameters")
    values = {str(item.get("name")): str(item.get("value", "")) for item in parameters}

    annotations = get_texts(workflow, "metadata", "annotations")
    date = annotations.get(SCHEDULED_TIME_ANNOTATION) or values.get("logical-date")
    if date:
        with suppress(BadInput):  # an invalid date fails in the workflow itself
            values["logical-date"] = moment_in_utc(date, values.get("timezone", ""))
    return values
