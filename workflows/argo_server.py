"""Argo's objects by way of its server: needs no rights on Kubernetes, and knows logs that were archived."""

import json
from collections.abc import Iterator
from typing import cast

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.argo import KINDS, identity, metadata, path
from imagekiln.workflows.connection import Connection, Json

NOT_FOUND = 404


class ArgoServer:
    """The verbs of `Argo`, each a request to Argo's server."""

    def __init__(self, connection: Connection) -> None:
        """Take the connection that is to be used."""
        self.connection = connection
        self.url = connection.url

    def create(self, made: Json) -> Json:
        """Make an object."""
        kind, namespace, _ = identity(made)
        return self.connection.ask("POST", _path(kind, namespace), body={KINDS[kind].body: made})

    def apply(self, made: Json) -> Json:
        """Make an object, or put it in the place of the one that is there."""
        kind, namespace, name = identity(made)
        place = _path(kind, namespace, name)
        try:
            there = self.connection.ask("GET", place)
        except Missing:
            return self.create(made)
        version = {"resourceVersion": metadata(there)["resourceVersion"]}
        body: Json = {KINDS[kind].body: made | _resting(there, made) | {"metadata": metadata(made) | version}}
        return self.connection.ask("PUT", place, body=body)

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""
        return self.connection.ask("GET", _path(kind, namespace, name))

    def find(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Every object that has the labels."""
        answer = self.connection.ask("GET", _path(kind, namespace), {"listOptions.labelSelector": labels})
        return cast("list[Json]", answer.get("items") or [])

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object."""
        self.connection.ask("DELETE", _path(kind, namespace, name))

    def stop(self, namespace: str, name: str) -> None:
        """End a workflow early."""
        self.connection.ask("PUT", f"{_path('Workflow', namespace, name)}/stop", body={})

    def suspend(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend a schedule, or let it go on."""
        verb = "suspend" if suspended else "resume"
        self.connection.ask("PUT", f"{_path('CronWorkflow', namespace, name)}/{verb}", body={})

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:
        """The pod's log, one JSON object for each line; from the archive where the pod is gone."""
        query = {"podName": pod, "logOptions.container": "main", "logOptions.follow": str(follow).lower()}
        for line in self.connection.lines(f"{_path('Workflow', namespace, workflow)}/log", query):
            if line.strip():
                yield _line(json.loads(line))


def _line(said: Json) -> str:
    """A line of a log. Raises Missing, or BadInput, where the stream says why there is none."""
    if "error" not in said:
        return str(cast("Json", said.get("result") or {}).get("content", ""))
    error = cast("Json", said["error"])
    kind = Missing if error.get("http_code") == NOT_FOUND else BadInput
    raise kind(f"{error.get('message') or 'the server says no more'}.")


def _resting(there: Json, made: Json) -> Json:
    """The spec of a schedule that stays suspended, which is not for who renders it to say; else nothing."""
    suspended = cast("Json", there.get("spec") or {}).get("suspend")
    return {"spec": cast("Json", made["spec"]) | {"suspend": True}} if suspended else {}


def _path(kind: str, namespace: str, *name: str) -> str:
    if not KINDS[kind].path:
        raise BadInput(f"Argo's server takes no {kind}. Go by kubeconfig: unset ARGO_SERVER.")
    return f"api/v1/{path(KINDS[kind].path, namespace, *name)}"
