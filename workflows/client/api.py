"""Verbs on Argo's objects that the client needs, and their implementation by the Kubernetes API."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.fields import OBJECT_NAME_PATTERN
from imagekiln.workflows.client.http import FOLLOW_TIMEOUT, LOG_TIMEOUT, ApiConnection
from imagekiln.workflows.objects import Json, get_mappings, object_identity

NAME_PATTERN = re.compile(OBJECT_NAME_PATTERN)
ARGO_API_PATH = "apis/argoproj.io/v1alpha1"
FIELD_MANAGER = "imagekiln"
PAGE_LIMIT = "200"  # objects per response: a workflow can have a megabyte
EVENT_LIMIT = "50"


@dataclass(frozen=True, slots=True)
class ArgoKind:
    """Kind of object: its plural in the Kubernetes API, and its path and body key in Argo's."""

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
# Otherwise, the workflows of a deleted schedule are deleted, too.
DELETION_QUERIES = {"CronWorkflow": {"propagationPolicy": "Orphan"}}


class ArgoApi(Protocol):
    """Argo's objects on a cluster. Every verb raises Missing, BadInput and TryAgain."""

    url: str

    def create(self, manifest: Json) -> Json:
        """Create an object. Raises AlreadyExists if its name is in use."""

    def apply(self, manifest: Json) -> Json:
        """Create an object, or update the one with its name. A paused schedule stays paused."""

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """Return an object by name."""

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Return the objects that a label selector matches."""

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object. The workflows of a schedule are kept, and continue."""

    def stop(self, namespace: str, name: str, *, at_once: bool = False) -> None:
        """Stop a workflow; with `at_once`, its exit handler does not run."""

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a schedule."""

    def pod_events(self, namespace: str, pod: str) -> list[Json]:
        """Return the Kubernetes events of a pod, at most one page."""

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:
        """Yield the log lines of a pod of a workflow."""


class KubernetesApi:
    """Implementation of `ArgoApi` by the Kubernetes API, with kubectl's rights."""

    def __init__(self, connection: ApiConnection) -> None:
        """Use a connection, without sending a request."""
        self.connection = connection
        self.url = connection.url

    def create(self, manifest: Json) -> Json:
        """Create an object."""
        kind, namespace, _ = object_identity(manifest)
        return self.connection.request("POST", _path(kind, namespace), body=manifest)

    def apply(self, manifest: Json) -> Json:
        """Apply an object on the server side, keeping fields that others own."""
        return self.connection.request(
            "PATCH",
            _path(*object_identity(manifest)),
            {"fieldManager": FIELD_MANAGER, "force": "true"},
            manifest,
            content_type="application/apply-patch+yaml",
        )

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """Return an object by name."""
        return self.connection.request("GET", _path(kind, namespace, name))

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Return all objects that a label selector matches."""
        query = {"labelSelector": labels, "limit": PAGE_LIMIT}
        return list(self.connection.list_items(_path(kind, namespace), query))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object. The workflows of a schedule are kept, and continue."""
        path = _path(kind, namespace, name)
        self.connection.request("DELETE", path, DELETION_QUERIES.get(kind))

    def stop(self, namespace: str, name: str, *, at_once: bool = False) -> None:
        """Stop a workflow by its `shutdown` field, as Argo's server does."""
        strategy = "Terminate" if at_once else "Stop"
        self._merge_spec("Workflow", namespace, name, {"shutdown": strategy})

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a schedule by its `suspend` field."""
        self._merge_spec("CronWorkflow", namespace, name, {"suspend": suspended})

    def pod_events(self, namespace: str, pod: str) -> list[Json]:
        """Return the Kubernetes events of a pod, at most one page."""
        path = f"api/v1/{object_path('namespaces', namespace, 'events')}"
        selector = f"involvedObject.kind=Pod,involvedObject.name={object_path(pod)}"
        query = {"fieldSelector": selector, "limit": EVENT_LIMIT}
        return get_mappings(self.connection.request("GET", path, query), "items")

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:  # noqa: ARG002
        """Yield the pod's log lines. Requires that the pod exists."""
        path = f"api/v1/{object_path('namespaces', namespace, 'pods', pod)}/log"
        query = {"container": "main", "follow": str(follow).lower()}
        max_silence = FOLLOW_TIMEOUT if follow else LOG_TIMEOUT
        return self.connection.stream_lines(path, query, max_silence)

    def _merge_spec(self, kind: str, namespace: str, name: str, spec: Json) -> None:
        path = _path(kind, namespace, name)
        content_type = "application/merge-patch+json"
        self.connection.request("PATCH", path, body={"spec": spec}, content_type=content_type)


def _path(kind: str, namespace: str, *name: str) -> str:
    """Return the path of a kind of Argo object, or of one object by name."""
    objects = object_path("namespaces", namespace, ARGO_KINDS[kind].plural, *name)
    return f"{ARGO_API_PATH}/{objects}"


def object_path(*segments: str) -> str:
    """Return a URL path of object names. Raises BadInput on a name that leads elsewhere."""
    for segment in segments:
        if not NAME_PATTERN.fullmatch(segment):
            raise BadInput(
                f"{segment!r}: is not a valid object name. Write at most 253 lower-case letters, "
                "digits, hyphens and dots, a letter or digit first and last."
            )
    return "/".join(segments)
