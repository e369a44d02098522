"""The verbs of both APIs on Argo's objects."""

from collections.abc import Iterator
from typing import cast

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.client.api import KubernetesApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.objects import Json, get_mapping

Api = type[ArgoServer | KubernetesApi]
BOTH = pytest.mark.parametrize("api", [ArgoServer, KubernetesApi])


class Recorder:
    """A connection that answers every request with an object or lines, and records them."""

    url = "https://argo"

    def __init__(self, *lines: str, stored: Json | None = None) -> None:
        """Answer with this object, or say that there is none."""
        self.lines = lines
        self.stored = stored
        self.asked: list[tuple[str, str, object, object]] = []
        self.silences: list[int] = []

    def request(
        self, method: str, path: str, query: object = None, body: object = None, **_: object
    ) -> Json:
        """Return the object."""
        if self.stored is None:
            raise Missing('https://argo: workflows.argoproj.io "night" not found.')
        self.asked.append((method, path, query, body))
        return self.stored

    def stream_lines(self, _path: str, _query: object, max_silence: int) -> Iterator[str]:
        """Yield the lines."""
        self.silences.append(max_silence)
        yield from self.lines


def connected(api: Api, connection: Recorder) -> ArgoServer | KubernetesApi:
    return api(cast("ApiConnection", connection))


@BOTH
@pytest.mark.parametrize("name", ["", "..", "a/b", "a?b", "a%2fb", "a\nb", "a" * 254])
def test_name_that_would_lead_to_another_url_is_rejected(api: Api, name: str) -> None:
    connection = Recorder(stored={})
    argo = connected(api, connection)
    for namespace, workflow in (("images", name), (name, "postcards")):
        with pytest.raises(BadInput, match=r"is not a valid object name\. Write at most 253"):
            argo.get("Workflow", namespace, workflow)
        with pytest.raises(BadInput, match="is not a valid object name"):
            argo.stop(namespace, workflow)
    assert not connection.asked


def test_workflow_is_stopped_and_terminated_by_either_api() -> None:
    server, kubernetes = Recorder(stored={}), Recorder(stored={})
    for at_once in (False, True):
        connected(ArgoServer, server).stop("images", "postcards", at_once=at_once)
        connected(KubernetesApi, kubernetes).stop("images", "postcards", at_once=at_once)
    place = "api/v1/workflows/images/postcards"
    assert [path for _, path, _, _ in server.asked] == [f"{place}/stop", f"{place}/terminate"]
    changes = [get_mapping(body, "spec")["shutdown"] for *_, body in kubernetes.asked]
    assert changes == ["Stop", "Terminate"]


@BOTH
def test_schedule_is_deleted_without_the_workflows_that_it_started(api: Api) -> None:
    connection = Recorder(stored={})
    argo = connected(api, connection)
    argo.delete("CronWorkflow", "images", "night")
    argo.delete("Workflow", "images", "night-1")
    (_, _, of_schedule, _), (_, _, of_workflow, _) = connection.asked
    assert list(cast("Json", of_schedule).values()) == ["Orphan"]
    assert not of_workflow, "its pods would be left"


def test_schedule_that_argos_server_replaces_keeps_its_pause_and_when_it_last_fired() -> None:
    last = {"cronworkflows.argoproj.io/last-used-schedule": "CRON_TZ=UTC 30 1 * * *"}
    title = {"workflows.argoproj.io/title": "night"}
    metadata: Json = {"name": "night", "namespace": "images"}
    status = {"lastScheduledTime": "2026-11-21T01:30:00Z"}
    stored = metadata | {"annotations": last, "resourceVersion": "7"}
    old: Json = {"schedules": ["30 1 * * *"], "suspend": True}
    connection = Recorder(stored={"metadata": stored, "status": status, "spec": old})
    manifest: Json = {"kind": "CronWorkflow", "metadata": metadata | {"annotations": title}}
    manifest["spec"] = {"schedules": ["0 3 * * *"]}
    connected(ArgoServer, connection).apply(manifest)
    (_, (method, _, _, body)) = connection.asked
    replacement = get_mapping(body, "cronWorkflow")
    assert (method, replacement["status"]) == ("PUT", status)
    assert replacement["spec"] == {"schedules": ["0 3 * * *"], "suspend": True}
    assert get_mapping(replacement, "metadata", "annotations") == last | title
    assert get_mapping(replacement, "metadata")["resourceVersion"] == "7"


def test_events_are_those_of_the_pod() -> None:
    event: Json = {"reason": "Pulling"}
    connection = Recorder(stored={"items": [event]})
    assert connected(KubernetesApi, connection).pod_events("images", "postcards-1") == [event]
    assert "name=postcards-1" in str(connection.asked)


@BOTH
def test_log_that_is_not_followed_has_an_end(api: Api) -> None:
    connection = Recorder()
    for follow in (True, False):
        list(connected(api, connection).logs("images", "postcards", "a", follow=follow))
    assert connection.silences == [3600, 300]


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ('{"error":{"http_code":404,"message":"pods \\"a\\" not found"}}', Missing, "not found"),
        ('{"error":{"http_code":500}}', BadInput, "gave no reason"),
    ],
)
def test_log_of_argos_server_is_lines_until_an_error(
    line: str, kind: type[BadInput], says: str
) -> None:
    argo = connected(ArgoServer, Recorder('{"result":{"content":"drawn"}}', "", line))
    lines = argo.logs("images", "postcards", "a", follow=False)
    assert next(lines) == "drawn"
    with pytest.raises(kind, match=says):
        next(lines)
