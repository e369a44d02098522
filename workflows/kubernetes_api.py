"""Argo's objects by way of the Kubernetes API, as kubectl goes."""

from collections.abc import Iterator, Mapping
from typing import cast

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
        return self.connection.ask("POST", _path(kind, namespace), body=made)

    def apply(self, made: Json) -> Json:
        """Apply an object on the server's side, which leaves alone what others have set."""
        query = {"fieldManager": MANAGER, "force": "true"}
        return self.connection.ask("PATCH", _path(*identity(made)), query, made, "application/apply-patch+yaml")

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""
        return self.connection.ask("GET", _path(kind, namespace, name))

    def find(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Every object that has the labels, page by page."""
        found: list[Json] = []
        query = {"labelSelector": labels, "limit": PAGE}
        while True:
            page = self.connection.ask("GET", _path(kind, namespace), query)
            found += cast("list[Json]", page["items"])
            following = cast("Mapping[str, str]", page["metadata"]).get("continue")
            if not following:
                return found
            query["continue"] = following

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object."""
        self.connection.ask("DELETE", _path(kind, namespace, name))

    def stop(self, namespace: str, name: str) -> None:
        """Say so in the workflow, as Argo's server would."""
        self._change(_path("Workflow", namespace, name), {"shutdown": "Stop"})

    def suspend(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Say so in the schedule."""
        self._change(_path("CronWorkflow", namespace, name), {"suspend": suspended})

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:  # noqa: ARG002
        """The pod's own log, while there is a pod."""
        query = {"container": "main", "follow": str(follow).lower()}
        return self.connection.lines(f"api/v1/namespaces/{namespace}/pods/{pod}/log", query)

    def _change(self, path: str, spec: Json) -> None:
        self.connection.ask("PATCH", path, body={"spec": spec}, kind="application/merge-patch+json")


def _path(kind: str, namespace: str, name: str = "") -> str:
    return "/".join(filter(None, (GROUP, "namespaces", namespace, KINDS[kind].plural, name)))
