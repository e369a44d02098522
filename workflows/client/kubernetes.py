"""Argo's objects through the Kubernetes API, with the rights that kubectl would have."""

from collections.abc import Iterator

from imagekiln.workflows.client.api import (
    ARGO_KINDS,
    DELETION_QUERIES,
    naming_place,
    object_path,
    pod_event_selector,
)
from imagekiln.workflows.client.http import FOLLOW_TIMEOUT, LOG_TIMEOUT, ApiConnection
from imagekiln.workflows.objects import Json, get_mappings, object_identity

ARGO_API_PATH = "apis/argoproj.io/v1alpha1"
FIELD_MANAGER = "imagekiln"
PAGE_LIMIT = "200"  # objects of one answer: a workflow can have a megabyte
EVENT_LIMIT = "50"


class KubernetesApi:
    """The verbs of `ArgoApi`, each a request to the Kubernetes API."""

    def __init__(self, connection: ApiConnection) -> None:
        """Use a connection; nothing is sent yet."""
        self.connection = connection
        self.url = connection.url

    def create(self, manifest: Json) -> Json:
        """Create an object."""
        kind, namespace, _ = object_identity(manifest)
        return self.connection.request("POST", _path(kind, namespace), body=manifest)

    def apply(self, manifest: Json) -> Json:
        """Server-side apply: fields that others own stay as they are."""
        return self.connection.request(
            "PATCH",
            _path(*object_identity(manifest)),
            {"fieldManager": FIELD_MANAGER, "force": "true"},
            manifest,
            content_type="application/apply-patch+yaml",
        )

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """Return an object by its name."""
        with naming_place(kind, namespace):
            return self.connection.request("GET", _path(kind, namespace, name))

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Return the objects that a label selector matches, of all pages."""
        query = {"labelSelector": labels, "limit": PAGE_LIMIT}
        return list(self.connection.list_items(_path(kind, namespace), query))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object. The workflows of a schedule stay, and go on."""
        path = _path(kind, namespace, name)
        self.connection.request("DELETE", path, DELETION_QUERIES.get(kind))

    def stop(self, namespace: str, name: str, *, at_once: bool = False) -> None:
        """Stop a workflow, as Argo's server does it: by its `shutdown` field."""
        strategy = "Terminate" if at_once else "Stop"
        self._merge_spec("Workflow", namespace, name, {"shutdown": strategy})

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a schedule by its `suspend` field."""
        with naming_place("CronWorkflow", namespace):
            self._merge_spec("CronWorkflow", namespace, name, {"suspend": suspended})

    def pod_events(self, namespace: str, pod: str) -> list[Json]:
        """Return Kubernetes' events of a pod, of the first page."""
        path = f"api/v1/{object_path('namespaces', namespace, 'events')}"
        query = {"fieldSelector": pod_event_selector(pod), "limit": EVENT_LIMIT}
        return get_mappings(self.connection.request("GET", path, query), "items")

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:  # noqa: ARG002
        """Yield the pod's log lines, while the pod exists."""
        path = f"api/v1/{object_path('namespaces', namespace, 'pods', pod)}/log"
        query = {"container": "main", "follow": str(follow).lower()}
        max_silence = FOLLOW_TIMEOUT if follow else LOG_TIMEOUT
        return self.connection.stream_lines(path, query, max_silence)

    def _merge_spec(self, kind: str, namespace: str, name: str, spec: Json) -> None:
        path = _path(kind, namespace, name)
        content_type = "application/merge-patch+json"
        self.connection.request("PATCH", path, body={"spec": spec}, content_type=content_type)


def _path(kind: str, namespace: str, *name: str) -> str:
    """Return the path of a kind of Argo's objects, or of one of them by its name."""
    objects = object_path("namespaces", namespace, ARGO_KINDS[kind].plural, *name)
    return f"{ARGO_API_PATH}/{objects}"
