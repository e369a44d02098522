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
        path = kubernetes_path(kind, namespace)
        return self.connection.request("POST", path, body=manifest)

    def apply(self, manifest: Json, *, dry_run: bool = False) -> Json:
        """Server-side apply: fields that others own stay as they are. A dry run writes nothing."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
        return self.connection.request(
            "PATCH",
            kubernetes_path(*object_identity(manifest)),
            query,
            manifest,
            content_type="application/apply-patch+yaml",
        )

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""
        path = kubernetes_path(kind, namespace, name)
        with naming_place(kind, namespace):
            return self.connection.request("GET", path)

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """The objects that a label selector matches, of all pages."""
        query = {"labelSelector": labels, "limit": PAGE_LIMIT}
        path = kubernetes_path(kind, namespace)
        return list(self.connection.list_items(path, query))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object. The workflows of a schedule stay, and go on."""
        path = kubernetes_path(kind, namespace, name)
        self.connection.request("DELETE", path, DELETION_QUERIES.get(kind))

    def stop(self, namespace: str, name: str) -> None:
        """Stop a workflow, as Argo's server does it: by its `shutdown` field."""
        path = kubernetes_path("Workflow", namespace, name)
        self._merge_spec(path, {"shutdown": "Stop"})

    def terminate(self, namespace: str, name: str) -> None:
        """Stop a workflow and its exit handler."""
        path = kubernetes_path("Workflow", namespace, name)
        self._merge_spec(path, {"shutdown": "Terminate"})

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a schedule by its `suspend` field."""
        path = kubernetes_path("CronWorkflow", namespace, name)
        with naming_place("CronWorkflow", namespace):
            self._merge_spec(path, {"suspend": suspended})

    def pod_events(self, namespace: str, pod: str) -> list[Json]:
        """Kubernetes' events of a pod, of the first page."""
        path = f"api/v1/{object_path('namespaces', namespace, 'events')}"
        query = {"fieldSelector": pod_event_selector(pod), "limit": EVENT_LIMIT}
        return get_mappings(self.connection.request("GET", path, query), "items")

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:  # noqa: ARG002
        """The pod's log lines, while the pod exists."""
        pod_path = object_path("namespaces", namespace, "pods", pod)
        path = f"api/v1/{pod_path}/log"
        query = {"container": "main", "follow": str(follow).lower()}
        max_silence = FOLLOW_TIMEOUT if follow else LOG_TIMEOUT
        return self.connection.stream_lines(path, query, max_silence)

    def _merge_spec(self, path: str, spec: Json) -> None:
        content_type = "application/merge-patch+json"
        self.connection.request("PATCH", path, body={"spec": spec}, content_type=content_type)


def kubernetes_path(kind: str, namespace: str, *name: str) -> str:
    """The path of a kind of Argo's objects, or of one of them by its name."""
    objects = object_path("namespaces", namespace, ARGO_KINDS[kind].plural, *name)
    return f"{ARGO_API_PATH}/{objects}"
