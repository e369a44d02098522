"""Argo's objects through its server, which needs no Kubernetes rights and serves archived logs."""

import json
from collections.abc import Iterator

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.client.api import (
    ARGO_KINDS,
    DELETION_QUERIES,
    object_path,
)
from imagekiln.workflows.client.http import FOLLOW_TIMEOUT, LOG_TIMEOUT, ApiConnection
from imagekiln.workflows.objects import (
    Json,
    get_mapping,
    get_mappings,
    get_texts,
    object_identity,
    object_metadata,
)

NOT_FOUND = 404


class ArgoServer:
    """Implementation of `ArgoApi` by requests to Argo's server."""

    def __init__(self, connection: ApiConnection) -> None:
        """Use a connection, without sending a request."""
        self.connection = connection
        self.url = connection.url

    def create(self, manifest: Json) -> Json:
        """Create an object."""
        kind, namespace, _ = object_identity(manifest)
        body: Json = {ARGO_KINDS[kind].body: manifest}
        return self.connection.request("POST", _path(kind, namespace), body=body)

    def apply(self, manifest: Json) -> Json:
        """Create an object, or replace the one with its name.

        Raises TryAgain on a concurrent change.
        """
        kind, namespace, name = object_identity(manifest)
        try:
            current = self.get(kind, namespace, name)
        except Missing:
            return self.create(manifest)
        body: Json = {ARGO_KINDS[kind].body: _replacement(current, manifest)}
        return self.connection.request("PUT", _path(kind, namespace, name), body=body)

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """Return an object by name."""
        return self.connection.request("GET", _path(kind, namespace, name))

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Return the objects that a label selector matches."""
        query = {"listOptions.labelSelector": labels}
        return get_mappings(self.connection.request("GET", _path(kind, namespace), query), "items")

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object. The workflows of a schedule are kept, and continue."""
        options = DELETION_QUERIES.get(kind, {})
        query = {f"deleteOptions.{key}": value for key, value in options.items()}
        self.connection.request("DELETE", _path(kind, namespace, name), query)

    def stop(self, namespace: str, name: str, *, at_once: bool = False) -> None:
        """Stop a workflow. Argo's server refuses to stop one that has ended."""
        verb = "terminate" if at_once else "stop"
        self.connection.request("PUT", f"{_path('Workflow', namespace, name)}/{verb}", body={})

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Suspend or resume a schedule."""
        path = _path("CronWorkflow", namespace, name)
        verb = "suspend" if suspended else "resume"
        self.connection.request("PUT", f"{path}/{verb}", body={})

    def pod_events(self, namespace: str, pod: str) -> list[Json]:  # noqa: ARG002
        """Return an empty list, since Argo's server only streams events."""
        return []

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:
        """Yield the pod's log lines, from the log archive once the pod is gone."""
        path = f"{_path('Workflow', namespace, workflow)}/log"
        query = {
            "podName": pod,
            "logOptions.container": "main",
            "logOptions.follow": str(follow).lower(),
        }
        max_silence = FOLLOW_TIMEOUT if follow else LOG_TIMEOUT
        for line in self.connection.stream_lines(path, query, max_silence):
            if line.strip():
                yield _log_line(json.loads(line))


def _path(kind: str, namespace: str, *name: str) -> str:
    return f"api/v1/{object_path(ARGO_KINDS[kind].path, namespace, *name)}"


def _replacement(current: Json, manifest: Json) -> Json:
    """Add to a manifest the fields that Kubernetes would keep of the object it replaces.

    Without a schedule's last time, Argo would not catch up on a missed run.
    """
    metadata: Json = {
        key: get_texts(current, "metadata", key) | get_texts(manifest, "metadata", key)
        for key in ("labels", "annotations")
    }
    metadata["resourceVersion"] = object_metadata(current).get("resourceVersion")
    spec = get_mapping(manifest, "spec")
    if get_mapping(current, "spec").get("suspend"):
        spec = {**spec, "suspend": True}
    state = {"status": current["status"]} if "status" in current else {}
    return {**manifest, **state, "metadata": object_metadata(manifest) | metadata, "spec": spec}


def _log_line(record: object) -> str:
    """Return the content of a log record. Raises Missing or BadInput on an error record."""
    error = get_mapping(record, "error")
    if not error:
        return str(get_mapping(record, "result").get("content", ""))
    message = error.get("message") or "Argo's server gave no reason"
    if error.get("http_code") == NOT_FOUND:
        raise Missing(f"{message}.")
    raise BadInput(f"{message}.")
