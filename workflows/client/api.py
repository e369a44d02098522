"""The verbs on Argo's objects that the client needs, for either API."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.fields import OBJECT_NAME_PATTERN
from imagekiln.workflows.objects import Json

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
# Without it, the workflows of a deleted schedule are deleted, too.
DELETION_QUERIES = {"CronWorkflow": {"propagationPolicy": "Orphan"}}
# The commands that list the objects that a user may name.
LISTING_COMMANDS = {"Workflow": "workflows", "CronWorkflow": "schedule list"}


class ArgoApi(Protocol):
    """Argo's objects on a cluster. Every verb raises Missing, BadInput and TryAgain."""

    url: str

    def create(self, manifest: Json) -> Json:
        """Create an object. Raises AlreadyExists if its name is in use."""

    def apply(self, manifest: Json) -> Json:
        """Create an object, or update the one of its name."""

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """Return an object by its name."""

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Return the objects that a label selector matches."""

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object. The workflows of a schedule stay, and go on."""

    def stop(self, namespace: str, name: str, *, at_once: bool = False) -> None:
        """Stop a workflow; with `at_once`, its exit handler does not run."""

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a schedule."""

    def pod_events(self, namespace: str, pod: str) -> list[Json]:
        """Return Kubernetes' events of a pod, those that one request gives."""

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:
        """Yield the log lines of a pod of a workflow."""


@contextmanager
def naming_place(kind: str, namespace: str) -> Iterator[None]:
    """Add to a Missing the namespace, and the command that lists the objects there."""
    try:
        yield
    except Missing as error:
        if kind not in LISTING_COMMANDS or " not found" not in str(error):
            raise
        command = f"`imagekiln {LISTING_COMMANDS[kind]} -n {namespace}`"
        raise Missing(f"{error} Looked for in namespace {namespace}: see {command}.") from error


def object_path(*segments: str) -> str:
    """Return a URL path of object names. Raises BadInput on a name that would lead elsewhere."""
    for segment in segments:
        if not NAME_PATTERN.fullmatch(segment):
            raise BadInput(
                f"{segment!r}: is not a valid object name. Write at most 253 lower-case letters, "
                "digits, hyphens and dots, a letter or digit first and last."
            )
    return "/".join(segments)


def pod_event_selector(pod: str) -> str:
    """Return the field selector of a pod's events."""
    return f"involvedObject.kind=Pod,involvedObject.name={object_path(pod)}"
