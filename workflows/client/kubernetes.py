"""Argo's objects by way of the Kubernetes API, as kubectl goes."""

from collections.abc import Iterator

from imagekiln.workflows.client.api import ARGO_KINDS, object_path
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.objects import Json, object_identity

ARGO_API_PATH = "apis/argoproj.io/v1alpha1"
FIELD_MANAGER = "imagekiln"
PAGE_LIMIT = "200"  # objects of an answer: a workflow can have a megabyte


class KubernetesApi:
    """The verbs of `Argo`, each a request to the Kubernetes API."""

    def __init__(self, connection: ApiConnection) -> None:
        """Take the connection that is to be used."""
        self.connection = connection
        self.url = connection.url

    def create(self, made: Json) -> Json:
        """Make an object."""
        kind, namespace, _ = object_identity(made)
        return self.connection.request("POST", kubernetes_path(kind, namespace), body=made)

    def apply(self, made: Json, *, dry_run: bool = False) -> Json:
        """Apply an object on the server's side, which leaves alone what others have set. A dry run writes nothing."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"} | (
            {"dryRun": "All"} if dry_run else {}
        )
        return self.connection.request(
            "PATCH",
            kubernetes_path(*object_identity(made)),
            query,
            made,
            "application/apply-patch+yaml",
        )

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""
        return self.connection.request("GET", kubernetes_path(kind, namespace, name))

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Every object that has the labels, page by page."""
        return list(
            self.connection.list_items(
                kubernetes_path(kind, namespace), {"labelSelector": labels, "limit": PAGE_LIMIT}
            )
        )

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object."""
        self.connection.request("DELETE", kubernetes_path(kind, namespace, name))

    def stop(self, namespace: str, name: str) -> None:
        """Say so in the workflow, as Argo's server would."""
        self._merge_patch(kubernetes_path("Workflow", namespace, name), {"shutdown": "Stop"})

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Say so in the schedule."""
        self._merge_patch(kubernetes_path("CronWorkflow", namespace, name), {"suspend": suspended})

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:  # noqa: ARG002
        """The pod's own log, while there is a pod."""
        query = {"container": "main", "follow": str(follow).lower()}
        return self.connection.stream_lines(
            f"api/v1/{object_path('namespaces', namespace, 'pods', pod)}/log", query
        )

    def _merge_patch(self, path: str, spec: Json) -> None:
        self.connection.request(
            "PATCH", path, body={"spec": spec}, kind="application/merge-patch+json"
        )


def kubernetes_path(kind: str, namespace: str, *name: str) -> str:
    """Where objects of a kind of Argo's are, or one of them."""
    return f"{ARGO_API_PATH}/{object_path('namespaces', namespace, ARGO_KINDS[kind].plural, *name)}"
