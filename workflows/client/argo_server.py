"""Argo's objects by way of its server: needs no rights on Kubernetes, and knows logs that were archived."""

import json
from collections.abc import Iterator
from typing import cast

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.client.api import ARGO_KINDS, object_path
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.objects import Json, object_identity, object_metadata

NOT_FOUND = 404


class ArgoServer:
    """The verbs of `Argo`, each a request to Argo's server."""

    def __init__(self, connection: ApiConnection) -> None:
        """Take the connection that is to be used."""
        self.connection = connection
        self.url = connection.url

    def create(self, made: Json) -> Json:
        """Make an object."""
        kind, namespace, _ = object_identity(made)
        return self.connection.request(
            "POST", _server_path(kind, namespace), body={ARGO_KINDS[kind].body: made}
        )

    def apply(self, made: Json) -> Json:
        """Make an object, or put it in the place of the one that is there."""
        kind, namespace, name = object_identity(made)
        place = _server_path(kind, namespace, name)
        try:
            there = self.connection.request("GET", place)
        except Missing:
            return self.create(made)
        version = {"resourceVersion": object_metadata(there)["resourceVersion"]}
        body: Json = {
            ARGO_KINDS[kind].body: made
            | _suspended_spec(there, made)
            | {"metadata": object_metadata(made) | version}
        }
        return self.connection.request("PUT", place, body=body)

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""
        return self.connection.request("GET", _server_path(kind, namespace, name))

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Every object that has the labels."""
        answer = self.connection.request(
            "GET", _server_path(kind, namespace), {"listOptions.labelSelector": labels}
        )
        return cast("list[Json]", answer.get("items") or [])

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Remove an object."""
        self.connection.request("DELETE", _server_path(kind, namespace, name))

    def stop(self, namespace: str, name: str) -> None:
        """End a workflow early."""
        self.connection.request("PUT", f"{_server_path('Workflow', namespace, name)}/stop", body={})

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend a schedule, or let it go on."""
        verb = "suspend" if suspended else "resume"
        self.connection.request(
            "PUT", f"{_server_path('CronWorkflow', namespace, name)}/{verb}", body={}
        )

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:
        """The pod's log, one JSON object for each line; from the archive where the pod is gone."""
        query = {
            "podName": pod,
            "logOptions.container": "main",
            "logOptions.follow": str(follow).lower(),
        }
        for line in self.connection.stream_lines(
            f"{_server_path('Workflow', namespace, workflow)}/log", query
        ):
            if line.strip():
                yield _log_line(json.loads(line))


def _log_line(said: Json) -> str:
    """A line of a log. Raises Missing, or BadInput, where the stream says why there is none."""
    if "error" not in said:
        return str(cast("Json", said.get("result") or {}).get("content", ""))
    error = cast("Json", said["error"])
    kind = Missing if error.get("http_code") == NOT_FOUND else BadInput
    raise kind(f"{error.get('message') or 'the server says no more'}.")


def _suspended_spec(there: Json, made: Json) -> Json:
    """The spec of a schedule that stays suspended, which is not for who renders it to say; else nothing."""
    suspended = cast("Json", there.get("spec") or {}).get("suspend")
    return {"spec": cast("Json", made["spec"]) | {"suspend": True}} if suspended else {}


def _server_path(kind: str, namespace: str, *name: str) -> str:
    if not ARGO_KINDS[kind].path:
        raise BadInput(f"Argo's server takes no {kind}. Go by kubeconfig: unset ARGO_SERVER.")
    return f"api/v1/{object_path(ARGO_KINDS[kind].path, namespace, *name)}"
