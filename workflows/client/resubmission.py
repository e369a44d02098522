"""A job's work once more, as a workflow of its own name: resubmitted, or as a retry.

A resubmission repeats a failed workflow with the same parameters: finished parts stay, missing
ones are made. A retry is a new workflow of the job that makes again what ended failed, blank or
missing. Retries of a single pod are Argo's, by `templates/pod_retries.py`.
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
NOT_COMPLETED = f"{ARGO_PREFIX}completed!=true"  # what has ended is large, and much of it
# A workflow that a CronWorkflow made has its date in this annotation.
SCHEDULED_TIME_ANNOTATION = f"{ARGO_PREFIX}scheduled-time"
# The labels in which Argo keeps a workflow's state; Argo's own resubmission omits the same.
STATE_LABELS = {
    f"{ARGO_PREFIX}{name}"
    for name in ("creator", "phase", "completed", "workflow-archiving-status")
}


def resubmit_workflow(workflow: Json, argo: ArgoApi) -> WorkflowStatus:
    """Run a workflow that has ended again, under the first free name.

    If an earlier resubmission runs or has succeeded, give that one instead. Raises BadInput while
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
    """Return the child workflows that have not ended: Argo does not stop them with their parent."""
    children = argo.list_objects("Workflow", namespace, f"{PARENT_LABEL}={name}")
    return [child for child in children if not has_ended(child)]


def is_stopping(workflow: Json) -> bool:
    """Return whether somebody has stopped the workflow, which has not ended yet."""
    return bool(get_mapping(workflow, "spec").get("shutdown")) and not has_ended(workflow)


def require_not_stopping(workflow: Json) -> None:
    """Raise BadInput while a workflow that was stopped has not ended."""
    if is_stopping(workflow):
        name = object_name(workflow)
        raise BadInput(
            f"{name}: is stopping. Wait for its end; if its last pods do not start, "
            f"{next_command('stop', name, object_namespace(workflow))} terminates it, which "
            "loses no image. Then run this again."
        )


def find_running_twin(workflow: Json, argo: ArgoApi) -> Json | None:
    """Another workflow that does the same work, and has not ended.

    That is the job's own workflow, a resubmission of it, the same date fired by a schedule, or one
    that another version of Imagekiln named. Raises BadInput if it is being stopped.
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
    """Start the job's next retry; give the latest one instead while that one still runs."""
    return _create_first_free(build_retry, 1, argo, lambda existing: not existing.ended)


def _create_first_free(
    build: Callable[[int], Json],
    first: int,
    argo: ArgoApi,
    is_acceptable: Callable[[WorkflowStatus], bool],
) -> WorkflowStatus:
    """Create the first workflow whose name is free, or return the first that will do.

    Names are tried by number, so two clients at once end up with the same workflow.
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
    """The same work under another name, without the state of the workflow that has ended."""
    metadata = object_metadata(workflow)
    labels = get_texts(metadata, "labels")
    spec = dict(get_mapping(workflow, "spec"))
    spec.pop("shutdown", None)
    # Argo's server answers without apiVersion and kind.
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
    """The schedule that owns a workflow, if one does: Argo knows by it that a run is running.

    Not a workflow: what belongs to one is deleted with it.
    """
    # To let an owner wait for the deletion of what it owns takes a right that few have.
    return [
        {key: value for key, value in owner.items() if key != "blockOwnerDeletion"}
        for owner in get_mappings(metadata, "ownerReferences")
        if owner.get("kind") == "CronWorkflow"
    ]


def _shorten_name(name: str) -> str:
    """A name with room for a resubmission's suffix; a digest keeps names of one prefix apart."""
    if len(name) + len(LONGEST_SUFFIX) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    prefix_chars = MAX_NAME_CHARS - len(f"-{digest}{LONGEST_SUFFIX}")
    return f"{name[:prefix_chars]}-{digest}"


def _normalized_parameters(workflow: Json) -> dict[str, str]:
    """A workflow's parameters, with its date in UTC, so that equal work compares equal."""
    parameters = get_mappings(workflow, "spec", "arguments", "parameters")
    values = {str(item.get("name")): str(item.get("value", "")) for item in parameters}

    annotations = get_texts(workflow, "metadata", "annotations")
    date = annotations.get(SCHEDULED_TIME_ANNOTATION) or values.get("logical-date")
    if date:
        with suppress(BadInput):  # a date that cannot be read fails in the workflow itself
            values["logical-date"] = moment_in_utc(date, values.get("timezone", ""))
    return values
