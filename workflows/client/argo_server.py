"""Argo's objects through its server: needs no Kubernetes rights, and serves archived logs."""

import json
from collections.abc import Iterator
from contextlib import suppress

from imagekiln.steps.errors import BadInput, Missing, TryAgain, first_line
from imagekiln.workflows.client.access import SERVER_VARIABLE, server_variable
from imagekiln.workflows.client.api import (
    ARGO_KINDS,
    DELETION_QUERIES,
    naming_place,
    object_path,
    pod_event_selector,
)
from imagekiln.workflows.client.failures import AlreadyExists, Conflict
from imagekiln.workflows.client.http import FOLLOW_TIMEOUT, LOG_TIMEOUT, ApiConnection
from imagekiln.workflows.objects import (
    Json,
    get_mappings,
    get_texts,
    object_identity,
    object_metadata,
)

NOT_FOUND = 404
MAX_CONFLICTS = 3  # of one object that is applied, with others who write it
EVENT_SILENCE = 5  # seconds until a stream of events is taken for complete


class ArgoServer:
    """The verbs of `ArgoApi`, each a request to Argo's server."""

    def __init__(self, connection: ApiConnection) -> None:
        """Use a connection; nothing is sent yet."""
        self.connection = connection
        self.url = connection.url

    def create(self, manifest: Json) -> Json:
        """Create an object."""
        kind, namespace, _ = object_identity(manifest)
        path = _server_path(kind, namespace)
        body: Json = {ARGO_KINDS[kind].body: manifest}
        return self.connection.request("POST", path, body=body)

    def apply(self, manifest: Json) -> Json:
        """Create an object, or replace the one of its name.

        What Argo keeps in it stays, as it does where Kubernetes applies: the last time of a
        schedule, without which Argo makes up for none that it misses. Somebody may create, change
        or delete the object meanwhile, or this client have done so, and the answer been lost.
        """
        for _ in range(MAX_CONFLICTS):
            with suppress(AlreadyExists, Missing, Conflict):
                return self._apply_once(manifest)
        return self._apply_once(manifest)

    def _apply_once(self, manifest: Json) -> Json:
        kind, namespace, name = object_identity(manifest)
        try:
            current = self.get(kind, namespace, name)
        except Missing:
            return self.create(manifest)

        body: Json = {ARGO_KINDS[kind].body: _replacement(current, manifest)}
        return self.connection.request("PUT", _server_path(kind, namespace, name), body=body)

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object by its name."""
        path = _server_path(kind, namespace, name)
        with naming_place(kind, namespace):
            return self.connection.request("GET", path)

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """The objects that a label selector matches."""
        path = _server_path(kind, namespace)
        query = {"listOptions.labelSelector": labels}
        return get_mappings(self.connection.request("GET", path, query), "items")

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object. The workflows of a schedule stay, and go on."""
        path = _server_path(kind, namespace, name)
        options = DELETION_QUERIES.get(kind, {})
        query = {f"deleteOptions.{key}": value for key, value in options.items()}
        self.connection.request("DELETE", path, query)

    def stop(self, namespace: str, name: str) -> None:
        """Stop a workflow. Argo's server refuses to stop one that has ended."""
        path = _server_path("Workflow", namespace, name)
        self.connection.request("PUT", f"{path}/stop", body={})

    def terminate(self, namespace: str, name: str) -> None:
        """Stop a workflow and its exit handler."""
        path = _server_path("Workflow", namespace, name)
        self.connection.request("PUT", f"{path}/terminate", body={})

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a schedule."""
        path = _server_path("CronWorkflow", namespace, name)
        verb = "suspend" if suspended else "resume"
        with naming_place("CronWorkflow", namespace):
            self.connection.request("PUT", f"{path}/{verb}", body={})

    def pod_events(self, namespace: str, pod: str) -> list[Json]:
        """Kubernetes' events of a pod, of a second: Argo's server has a stream of them, no list."""
        path = f"api/v1/stream/events/{object_path(namespace)}"
        query = {
            "listOptions.fieldSelector": pod_event_selector(pod),
            "listOptions.timeoutSeconds": "1",
        }
        events: list[Json] = []
        with suppress(TryAgain):  # the stream fell silent, or broke
            for line in self.connection.stream_lines(path, query, EVENT_SILENCE):
                result = _parse_record(line).get("result") if line.strip() else None
                if isinstance(result, dict):
                    events.append(result)
        return events

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:
        """The pod's log lines; from the log archive once the pod is gone."""
        path = f"{_server_path('Workflow', namespace, workflow)}/log"
        query = {
            "podName": pod,
            "logOptions.container": "main",
            "logOptions.follow": str(follow).lower(),
        }
        max_silence = FOLLOW_TIMEOUT if follow else LOG_TIMEOUT
        for line in self.connection.stream_lines(path, query, max_silence):
            if line.strip():
                yield _log_line(_parse_record(line))


def _server_path(kind: str, namespace: str, *name: str) -> str:
    path = ARGO_KINDS[kind].path
    if not path:
        raise BadInput(
            f"Argo's server has no endpoint for a {kind}. "
            f"Use the Kubernetes API instead: unset {server_variable() or SERVER_VARIABLE}."
        )
    return f"api/v1/{object_path(path, namespace, *name)}"


def _replacement(current: Json, manifest: Json) -> Json:
    """A manifest with what others have written into the object that it replaces."""
    metadata = object_metadata(manifest)
    merged: Json = {
        key: get_texts(current, "metadata", key) | get_texts(manifest, "metadata", key)
        for key in ("labels", "annotations")
    }
    version = object_metadata(current).get("resourceVersion")
    state = {"status": current["status"]} if "status" in current else {}
    return manifest | state | {"metadata": metadata | merged | {"resourceVersion": version}}


def _parse_record(line: str) -> Json:
    """A line of a stream, each of which is a JSON object. Raises BadInput for another."""
    record: object = None
    with suppress(ValueError):
        record = json.loads(line)
    if not isinstance(record, dict):
        raise BadInput(f"Argo's server sent {first_line(line)!r}, which is not JSON. Run again.")
    return record


def _log_line(record: Json) -> str:
    """The text of one record of a log stream. Raises Missing or BadInput on an error record."""
    error, entry = record.get("error"), record.get("result")
    if error is None:
        return str(entry.get("content", "")) if isinstance(entry, dict) else ""
    if not isinstance(error, dict):
        raise BadInput("Argo's server gave no reason.")
    message = error.get("message") or "Argo's server gave no reason"
    if error.get("http_code") == NOT_FOUND:
        raise Missing(f"{message}.")
    raise BadInput(f"{message}.")
