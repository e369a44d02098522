"""A workflow's work once more, after it has ended: under a name of its own, with what the first was given."""

import hashlib
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows import status, submission
from imagekiln.workflows.argo import ArgoApi, object_identity, object_metadata
from imagekiln.workflows.connection import Json
from imagekiln.workflows.further import PARENT_LABEL
from imagekiln.workflows.refusals import AlreadyExists
from imagekiln.workflows.status import FAILED_PHASES, WorkflowStatus

MAX_RESUBMISSIONS = 100  # of one job, after failures
RESUBMIT_INFIX = "-again-"
MAX_NAME_CHARS = 60  # Argo takes names of 63 signs, and further workflows add up to three
SCHEDULED_TIME_ANNOTATION = "workflows.argoproj.io/scheduled-time"  # by it, a workflow of a schedule knows its date


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
            "apiVersion": submission.API_VERSION,
            "kind": "Workflow",
            "metadata": kept | {"name": name},
            "spec": spec,
        }
        try:
            return status.read_status(argo.create(made))
        except AlreadyExists:
            found = status.read_available_status(argo.get(*object_identity(made)))
            if found.phase not in FAILED_PHASES:
                return found
    raise BadInput(f"{first}: failed {MAX_RESUBMISSIONS} times. See why, then delete these workflows.")


def running_children(name: str, namespace: str, argo: ArgoApi) -> list[str]:
    """The further workflows of one that have not ended: Argo lets them go on when that one is stopped or fails."""
    found = argo.list_objects("Workflow", namespace, f"{PARENT_LABEL}={name}")
    return [str(object_metadata(each)["name"]) for each in found if not status.has_ended(each)]


def _shorten_name(name: str) -> str:
    """A workflow's name, with room for what numbers its tries; one that is cut short stays apart from its like."""
    if len(name) + len(f"{RESUBMIT_INFIX}{MAX_RESUBMISSIONS}") <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: MAX_NAME_CHARS - len(f'-{digest}{RESUBMIT_INFIX}{MAX_RESUBMISSIONS}')]}-{digest}"


def _without_argo_state(given: object) -> dict[str, str]:
    """Labels or annotations without those that Argo keeps its own state in."""
    kept = {"workflows.argoproj.io/title", "workflows.argoproj.io/description", SCHEDULED_TIME_ANNOTATION}
    pairs = cast("dict[str, str]", given or {}).items()
    return {key: value for key, value in pairs if key in kept or not key.startswith("workflows.argoproj.io/")}
