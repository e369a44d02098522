"""Argo's objects on a cluster: one set of verbs, whichever API they go by."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.fields import OBJECT_NAME_PATTERN
from imagekiln.workflows.objects import Json

NAME_PATTERN = re.compile(OBJECT_NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class ArgoKind:
    """A kind of object: its plural at the Kubernetes API; at Argo's server its path, and its name in a body."""

    plural: str
    path: str
    body: str


ARGO_KINDS = {
    "Workflow": ArgoKind("workflows", "workflows", "workflow"),
    "WorkflowTemplate": ArgoKind("workflowtemplates", "workflow-templates", "template"),
    "CronWorkflow": ArgoKind("cronworkflows", "cron-workflows", "cronWorkflow"),
    "WorkflowEventBinding": ArgoKind("workfloweventbindings", "", ""),  # the server takes none
}


class ArgoApi(Protocol):
    """What is asked of a cluster. Every verb raises Missing, BadInput and TryAgain."""

    url: str

    def create(self, made: Json) -> Json:
        """Make an object. Raises Taken where one has its name."""

    def apply(self, made: Json) -> Json:
        """Make an object, or bring the one of its name up to date."""

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """The objects that a label selector finds."""

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object."""

    def stop(self, namespace: str, name: str) -> None:
        """End a workflow early; its exit handler still runs."""

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend a schedule, or let it go on."""

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:
        """The lines that a pod of a workflow has logged."""


def object_path(*segments: str) -> str:
    """A path of names, which may have been typed: none of them is empty, or leads elsewhere. Raises BadInput."""
    for each in segments:
        if not NAME_PATTERN.fullmatch(each):
            raise BadInput(
                f"{each!r}: is no name of an object on a cluster. `imagekiln list` shows what there is."
            )
    return "/".join(segments)
