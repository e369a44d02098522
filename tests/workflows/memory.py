"""A cluster that is a dictionary: it stores objects, and rejects a name that is in use."""

from collections.abc import Iterator
from copy import deepcopy
from typing import cast

from imagekiln.steps.errors import Missing, TryAgain
from imagekiln.workflows.client.http import AlreadyExists
from imagekiln.workflows.objects import Json, get_mapping, get_texts, object_identity


class Memory:
    """The verbs of `ArgoApi`, without a cluster."""

    url = "memory"

    def __init__(self) -> None:
        """Start without objects."""
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.logged: dict[str, list[str]] = {}
        self.events: dict[str, list[Json]] | None = {}
        self.event_requests: list[str] = []

    def create(self, manifest: Json) -> Json:
        """Store an object."""
        if object_identity(manifest) in self.objects:
            raise AlreadyExists(f"{object_identity(manifest)[2]}: already exists.")
        return self.apply(manifest)

    def apply(self, manifest: Json) -> Json:
        """Store an object, in place of the one of its name. A paused schedule stays paused."""
        identity = object_identity(manifest)
        stored = deepcopy(manifest)
        if get_mapping(self.objects.get(identity), "spec").get("suspend"):
            get_mapping(stored, "spec")["suspend"] = True
        self.objects[identity] = stored
        return stored

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """An object without apiVersion and kind, as Argo's server answers."""
        if (kind, namespace, name) not in self.objects:
            raise Missing(f"{name}: not found.")
        stored = self.objects[kind, namespace, name]
        return {key: value for key, value in stored.items() if key not in ("apiVersion", "kind")}

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """The objects that a selector of `key=value`, `key!=value` and `!key` matches."""
        selectors = labels.split(",")
        return [
            stored
            for (stored_kind, stored_namespace, _), stored in self.objects.items()
            if (stored_kind, stored_namespace) == (kind, namespace)
            and all(_matches(stored, selector) for selector in selectors)
        ]

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object."""
        del self.objects[kind, namespace, name]

    def stop(self, namespace: str, name: str, *, at_once: bool = False) -> None:
        """Set the workflow's `shutdown`, as Argo's server does."""
        self.spec(name, namespace)["shutdown"] = "Terminate" if at_once else "Stop"

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Set the schedule's `suspend`."""
        self.spec(name, namespace, "CronWorkflow")["suspend"] = suspended

    def pod_events(self, namespace: str, pod: str) -> list[Json]:  # noqa: ARG002
        """The events that a test put into `events`; TryAgain where it put None."""
        self.event_requests.append(pod)
        if self.events is None:
            raise TryAgain("events: no answer.")
        return self.events.get(pod, [])

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:  # noqa: ARG002
        """The lines that a test put into `logged`."""
        if pod not in self.logged:
            raise Missing(f"{pod}: not found.")
        yield from self.logged[pod]

    def end(self, name: str, phase: str, **status: object) -> None:
        """Give a workflow a phase, as the controller would."""
        for (kind, _, stored_name), stored in self.objects.items():
            if (kind, stored_name) == ("Workflow", name):
                stored["status"] = {"phase": phase, **status}

    def workflows(self) -> list[str]:
        """The names of all workflows, in the order of their creation."""
        return [name for kind, _, name in self.objects if kind == "Workflow"]

    def spec(self, name: str, namespace: str = "images", kind: str = "Workflow") -> Json:
        """The spec of an object."""
        return cast("Json", self.get(kind, namespace, name)["spec"])

    def arguments(self, name: str, namespace: str = "images") -> dict[str, str]:
        """The arguments of a workflow, by the names of their parameters."""
        arguments = cast("dict[str, list[dict[str, str]]]", self.spec(name, namespace)["arguments"])
        return {item["name"]: item["value"] for item in arguments["parameters"]}


def _matches(stored: Json, selector: str) -> bool:
    labels = get_texts(stored, "metadata", "labels")
    if selector.startswith("!"):
        return selector.removeprefix("!") not in labels
    key, _, value = selector.partition("=")
    if key.endswith("!"):
        return labels.get(key.removesuffix("!")) != value
    return labels.get(key) == value
