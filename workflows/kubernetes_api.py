"""Argo's objects by way of the Kubernetes API, as kubectl goes."""

from collections.abc import Iterator

from imagekiln.workflows import argo
from imagekiln.workflows.argo import KINDS, identity
from imagekiln.workflows.connection import Connection, Json

GROUP = "apis/argoproj.io/v1alpha1"
MANAGER = "imagekiln"
PAGE = "200"  # objects of an answer: a workflow can have a megabyte


class KubernetesApi:
    """The verbs of `Argo`, each a request to the Kubernetes API."""

    def __init__(self, connection: Connection) -> None:
        """Take the connection that is to be used."""
        self.connection = connection
        self.url = connection.url

    def create(self, made: Json) -> Json:
        """Make an object."""
        kind, namespace, _ = identity(made)
        return self.connection.ask("POST", path(kind, namespace), body=made)

    def apply(self, made: Json, *, dry_run: bool = False) -> Json:
        """Apply an object on the server's side, which leaves alone what others have set. A dry run writes nothing."""
        query = {"fieldManager": MANAGER, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return self.connection.ask("PATCH", path(*identity(made)), query, made, "application/apply-patch+yaml")

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""
        return self.connection.ask("GET", path(kind, namespace, name))

    def find(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Every object that has the labels, page by page."""
        return list(self.connection.pages(path(kind, namespace), {"labelSelector": labels, "limit": PAGE}))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object."""
        self.connection.ask("DELETE", path(kind, namespace, name))

    def stop(self, namespace: str, name: str) -> None:
        """Say so in the workflow, as Argo's server would."""
        self._change(path("Workflow", namespace, name), {"shutdown": "Stop"})

    def suspend(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Say so in the schedule."""
        self._change(path("CronWorkflow", namespace, name), {"suspend": suspended})

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:  # noqa: ARG002
        """The pod's own log, while there is a pod."""
        query = {"container": "main", "follow": str(follow).lower()}
        return self.connection.lines(f"api/v1/{argo.path('namespaces', namespace, 'pods', pod)}/log", query)

    def _change(self, path: str, spec: Json) -> None:
        self.connection.ask("PATCH", path, body={"spec": spec}, kind="application/merge-patch+json")


def path(kind: str, namespace: str, *name: str) -> str:
    """Where objects of a kind of Argo's are, or one of them."""
    return f"{GROUP}/{argo.path('namespaces', namespace, KINDS[kind].plural, *name)}"
