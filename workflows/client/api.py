"""The verbs on Argo's objects that the client needs, whichever API serves them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.fields import OBJECT_NAME_PATTERN
from imagekiln.workflows.objects import Json

CHECK_ADDRESS = "Check that this is the address of the API."
NAME_PATTERN = re.compile(OBJECT_NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class ArgoKind:
    """A kind of object: its plural in the Kubernetes API, and its path and body key in Argo's."""

    plural: str
    path: str
    body: str


ARGO_KINDS = {
    "Workflow": ArgoKind("workflows", "workflows", "workflow"),
    "WorkflowTemplate": ArgoKind("workflowtemplates", "workflow-templates", "template"),
    "CronWorkflow": ArgoKind("cronworkflows", "cron-workflows", "cronWorkflow"),
    # Argo's server has no endpoint for these.
    "WorkflowEventBinding": ArgoKind("workfloweventbindings", "", ""),
}


# What becomes of the objects that one owns, once it is deleted: without it, they are deleted, too.
DELETION_QUERIES = {"CronWorkflow": {"propagationPolicy": "Orphan"}}

# What shows the objects of a namespace that a user may name.
LISTING_COMMANDS = {"Workflow": "workflows", "CronWorkflow": "schedule list"}


class ArgoApi(Protocol):
    """Argo's objects on a cluster. Every verb raises Missing, BadInput and TryAgain."""

    url: str

    def create(self, manifest: Json) -> Json:
        """Create an object. Raises AlreadyExists if its name is in use."""

    def apply(self, manifest: Json) -> Json:
        """Create an object, or update the one of its name."""

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """The objects that a label selector matches."""

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object. The workflows of a schedule stay, and go on."""

    def stop(self, namespace: str, name: str) -> None:
        """Stop a workflow; its exit handler still runs."""

    def terminate(self, namespace: str, name: str) -> None:
        """Stop a workflow and its exit handler."""

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a schedule."""

    def pod_events(self, namespace: str, pod: str) -> list[Json]:
        """Kubernetes' events of a pod, those that one request gives."""

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:
        """The log lines of a pod of a workflow."""


@contextmanager
def naming_place(kind: str, namespace: str) -> Iterator[None]:
    """Add to a Missing where an object was looked for, and the command that lists those there."""
    try:
        yield
    except Missing as error:
        if kind not in LISTING_COMMANDS or " not found" not in str(error):
            raise
        command = f"`imagekiln {LISTING_COMMANDS[kind]} -n {namespace}`"
        place = f"Looked for in namespace {namespace}: see {command}."
        raise Missing(f"{error} {place}") from error


def pod_event_selector(pod: str) -> str:
    """The field selector of a pod's events."""
    return f"involvedObject.kind=Pod,involvedObject.name={object_path(pod)}"


def object_path(*segments: str) -> str:
    """A URL path of object names. Raises BadInput on a name that would lead elsewhere."""
    for segment in segments:
        if not NAME_PATTERN.fullmatch(segment):
            raise BadInput(
                f"{segment!r}: is not a valid object name. Write at most 253 lower-case letters, "
                "digits, hyphens and dots, a letter or digit first and last."
            )
    return "/".join(segments)
