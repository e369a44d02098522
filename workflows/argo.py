"""Argo's objects on a cluster: one set of verbs, whichever API they go by."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from imagekiln.steps.errors import BadInput
from imagekiln.steps.values import OBJECT_NAME_PATTERN
from imagekiln.workflows.connection import Json

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


def connect(server: str | None = None, context: str | None = None) -> ArgoApi:
    """Argo's server where one is named, here or by ARGO_SERVER, else the Kubernetes API. Raises BadInput."""
    from imagekiln.workflows import access
    from imagekiln.workflows.argo_server import ArgoServer
    from imagekiln.workflows.connection import ApiConnection
    from imagekiln.workflows.kubernetes_api import KubernetesApi

    named = server or (None if context else access.server_from_environment())
    if named:
        return ArgoServer(ApiConnection(access.argo_server_access(named)))
    return KubernetesApi(ApiConnection(access.kubernetes_access(context)))


def object_path(*segments: str) -> str:
    """A path of names, which may have been typed: none of them is empty, or leads elsewhere. Raises BadInput."""
    for each in segments:
        if not NAME_PATTERN.fullmatch(each):
            raise BadInput(f"{each!r}: is no name of an object on a cluster. `imagekiln list` shows what there is.")
    return "/".join(segments)


def object_metadata(made: Json) -> Json:
    """An object's metadata."""
    return cast("Json", made["metadata"])


def object_identity(made: Json) -> tuple[str, str, str]:
    """An object's kind, namespace and name."""
    about = cast("Mapping[str, str]", made["metadata"])
    return str(made["kind"]), about["namespace"], about["name"]
