"""A cluster that is a dictionary: keeps what it is given, and refuses a name that is taken."""

from collections.abc import Iterator
from copy import deepcopy
from typing import cast

from imagekiln.steps.errors import Missing
from imagekiln.workflows.client.failures import AlreadyExists
from imagekiln.workflows.objects import Json, object_identity, object_metadata


class Memory:
    """The verbs of `Argo`, without a cluster."""

    url = "memory"

    def __init__(self) -> None:
        """Begin empty."""
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.logged: dict[str, list[str]] = {}

    def create(self, made: Json) -> Json:
        """Keep an object."""
        if object_identity(made) in self.objects:
            raise AlreadyExists(f"{object_identity(made)[2]}: already exists.")
        return self.apply(made)

    def apply(self, made: Json) -> Json:
        """Keep an object, whatever was there."""
        self.objects[object_identity(made)] = deepcopy(made)
        return self.objects[object_identity(made)]

    def get(self, kind: str, namespace: str, name: str) -> Json:
        """What was kept, without saying of what kind it is: Argo's server says as little."""
        try:
            found = self.objects[kind, namespace, name]
            return {key: value for key, value in found.items() if key not in ("apiVersion", "kind")}
        except KeyError as error:
            raise Missing(f"{name}: not found.") from error

    def list_objects(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """What has the labels, or has them not."""
        found = [
            each
            for (of, where, _), each in self.objects.items()
            if (of, where) == (kind, namespace)
        ]
        return [each for each in found if all(_has(each, label) for label in labels.split(","))]

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Forget an object."""
        del self.objects[kind, namespace, name]

    def stop(self, namespace: str, name: str) -> None:
        """Say so in the workflow."""
        self._spec("Workflow", namespace, name)["shutdown"] = "Stop"

    def set_suspended(self, namespace: str, name: str, *, suspended: bool) -> None:
        """Say so in the schedule."""
        self._spec("CronWorkflow", namespace, name)["suspend"] = suspended

    def logs(self, namespace: str, workflow: str, pod: str, *, follow: bool) -> Iterator[str]:  # noqa: ARG002
        """What a test wrote."""
        if pod not in self.logged:
            raise Missing(f"{pod}: not found.")
        yield from self.logged[pod]

    def end(self, name: str, phase: str, **status: object) -> None:
        """Let a workflow end, as the controller would."""
        found = next(
            each
            for (kind, _, called), each in self.objects.items()
            if (kind, called) == ("Workflow", name)
        )
        found["status"] = {"phase": phase, **status}

    def _spec(self, kind: str, namespace: str, name: str) -> Json:
        return cast("Json", self.get(kind, namespace, name)["spec"])


def _has(found: Json, label: str) -> bool:
    there = cast("dict[str, str]", object_metadata(found).get("labels") or {})
    key, is_given, value = label.partition("=")
    return there.get(key) == value if is_given else key.removeprefix("!") not in there
