"""Object names in URLs, and the log stream of Argo's server."""

from collections.abc import Iterator
from typing import cast

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.failures import AlreadyExists, Conflict
from imagekiln.workflows.client.http import ApiAccess, ApiConnection
from imagekiln.workflows.client.kubernetes import KubernetesApi
from imagekiln.workflows.objects import Json, get_mapping
from tests.kube import Kube, serving


class Stream:
    """A connection that answers every request with the same lines."""

    url = "https://argo"

    def __init__(self, *lines: str) -> None:
        """Answer with these lines."""
        self._lines = lines

    def request(self, *_: object, **__: object) -> None:
        """Fail: no request may be sent."""
        pytest.fail("a request was sent")

    def stream_lines(self, *_: object, **__: object) -> Iterator[str]:
        """The lines."""
        yield from self._lines


class Absent(Stream):
    """A connection to a cluster that has no object."""

    def request(self, *_: object, **__: object) -> None:
        """Say that there is none, as Kubernetes does."""
        raise Missing('https://argo: workflows.argoproj.io "night" not found.')


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a?b", "a%2fb", "a\nb", "-a", "A", "{{a}}", "a" * 254]
)
@pytest.mark.parametrize("api", [ArgoServer, KubernetesApi])
def test_name_that_would_lead_to_another_url_is_rejected(
    api: type[ArgoServer | KubernetesApi], name: str
) -> None:
    argo = api(cast("ApiConnection", Stream()))
    for namespace, workflow in (("images", name), (name, "postcards")):
        for verb in (argo.get, argo.delete):
            with pytest.raises(BadInput, match="is not a valid object name"):
                verb("Workflow", namespace, workflow)
        for end in (argo.stop, argo.terminate):
            with pytest.raises(BadInput, match="is not a valid object name"):
                end(namespace, workflow)


class Recording(Stream):
    """A connection that notes what is requested."""

    def __init__(self, *lines: str) -> None:
        """Nothing was requested yet."""
        super().__init__(*lines)
        self.requested: list[tuple[object, ...]] = []

    def request(self, *request: object, **_: object) -> None:
        """Note a request, and answer nothing."""
        self.requested.append(request)


def test_workflow_is_stopped_and_terminated_through_argo_s_server() -> None:
    connection = Recording()
    argo = ArgoServer(cast("ApiConnection", connection))
    argo.stop("images", "postcards")
    argo.terminate("images", "postcards")
    assert connection.requested == [
        ("PUT", "api/v1/workflows/images/postcards/stop"),
        ("PUT", "api/v1/workflows/images/postcards/terminate"),
    ]


@pytest.mark.parametrize("line", ["[1]", "null", '{"error": "gone"}', "<html>"])
def test_log_line_of_another_shape_is_told(line: str) -> None:
    argo = ArgoServer(cast("ApiConnection", Stream(line)))
    with pytest.raises(BadInput, match=r"is not JSON|gave no reason"):
        list(argo.logs("images", "postcards", "pod", follow=False))


def test_name_that_no_object_can_have_is_refused_with_the_rule() -> None:
    argo = KubernetesApi(cast("ApiConnection", Stream()))
    with pytest.raises(BadInput) as raised:
        argo.list_objects("Workflow", "My_NS", "")
    assert str(raised.value) == (
        "'My_NS': is not a valid object name. Write at most 253 lower-case letters, digits, "
        "hyphens and dots, a letter or digit first and last."
    )


@pytest.mark.parametrize("api", [ArgoServer, KubernetesApi])
def test_name_that_is_not_in_the_namespace_is_said_with_the_list_of_those_that_are(
    api: type[ArgoServer | KubernetesApi],
) -> None:
    argo = api(cast("ApiConnection", Absent()))
    with pytest.raises(Missing, match="Looked for in namespace a: see `imagekiln workflows -n a`"):
        argo.get("Workflow", "a", "night")
    with pytest.raises(Missing, match="see `imagekiln schedule list -n a`"):
        argo.set_suspended("a", "night", suspended=True)
    with pytest.raises(Missing, match=r'"night" not found\.$'):  # no command lists templates
        argo.get("WorkflowTemplate", "a", "night")


def test_log_stream_of_argos_server_is_lines_until_an_error_record() -> None:
    line = '{"result":{"content":"drawn","podName":"a"}}'
    argo = ArgoServer(cast("ApiConnection", Stream(line, "", '{"result":{}}')))
    assert list(argo.logs("images", "postcards", "a", follow=False)) == ["drawn", ""]
    error = '{"error":{"grpc_code":5,"http_code":404,"message":"pods \\"a\\" not found"}}'
    argo = ArgoServer(cast("ApiConnection", Stream(error)))
    with pytest.raises(Missing, match='pods "a" not found'):
        list(argo.logs("images", "postcards", "a", follow=False))


def test_events_of_a_pod_are_one_bounded_request() -> None:
    event: Json = {"reason": "FailedMount", "message": "no volume"}
    kube = Kube()
    kube.objects["api/v1/namespaces/imagekiln/events"] = {"items": [event]}
    with serving(kube):
        events = KubernetesApi(kube.connection()).pod_events("imagekiln", "postcards-1")
    assert events == [event]
    (request,) = kube.requests
    assert "limit=50" in request
    assert "involvedObject.name%3Dpostcards-1" in request


def test_events_from_argos_server_are_those_of_its_stream() -> None:
    end = '{"error":{"grpc_code":8,"message":"EOF"}}'
    argo = ArgoServer(cast("ApiConnection", Stream('{"result":{"reason":"Pulling"}}', "", end)))
    assert argo.pod_events("images", "postcards-1") == [{"reason": "Pulling"}]


class Recorder(ApiConnection):
    """A connection to a schedule, which keeps what else was asked of it."""

    def __init__(self, stored: Json) -> None:
        """Answer each request with this object."""
        super().__init__(ApiAccess("https://argo", lambda: None))
        self.stored = stored
        self.asked: list[tuple[str, object, object]] = []

    def request(self, method: str, _path: str, query: object = None, body: object = None) -> Json:  # type: ignore[override]
        """The object."""
        if method != "GET":
            self.asked.append((method, query, body))
        return self.stored


@pytest.mark.parametrize(("api", "prefix"), [(ArgoServer, "deleteOptions."), (KubernetesApi, "")])
def test_schedule_is_deleted_without_the_workflows_that_it_started(
    api: type[ArgoServer | KubernetesApi], prefix: str
) -> None:
    connection = Recorder({})
    argo = api(connection)
    argo.delete("CronWorkflow", "images", "night")
    argo.delete("Workflow", "images", "night-1")
    (_, of_schedule, _), (_, of_workflow, _) = connection.asked
    assert of_schedule == {f"{prefix}propagationPolicy": "Orphan"}
    assert not of_workflow, "its pods would be left"


def test_schedule_that_argos_server_replaces_keeps_when_it_last_fired() -> None:
    last = {"cronworkflows.argoproj.io/last-used-schedule": "CRON_TZ=UTC 30 1 * * *"}
    metadata: Json = {"name": "night", "namespace": "images", "annotations": last}
    status = {"lastScheduledTime": "2026-11-21T01:30:00Z", "active": []}
    connection = Recorder(
        {"metadata": metadata | {"resourceVersion": "7"}, "spec": {}, "status": status}
    )
    title = {"workflows.argoproj.io/title": "night"}
    manifest: Json = {
        "kind": "CronWorkflow",
        "metadata": metadata | {"annotations": title},
        "spec": {"suspend": False},
    }
    ArgoServer(connection).apply(manifest)
    ((method, _, body),) = connection.asked
    replacement = get_mapping(body, "cronWorkflow")
    assert method == "PUT"
    assert replacement["status"] == status
    assert replacement["spec"] == {"suspend": False}
    assert get_mapping(replacement, "metadata", "annotations") == last | title
    assert get_mapping(replacement, "metadata")["resourceVersion"] == "7"


class Contested(Recorder):
    """A connection to a schedule that others write, too."""

    def __init__(self, stored: Json, *refusals: KilnError | None) -> None:
        """Answer with these errors first; None stands for the object."""
        super().__init__(stored)
        self._refusals = list(refusals)
        self.methods: list[str] = []

    def request(self, method: str, path: str, query: object = None, body: object = None) -> Json:  # type: ignore[override]
        """The object, or the next error."""
        self.methods.append(method)
        refusal = self._refusals.pop(0) if self._refusals else None
        if refusal is not None:
            raise refusal
        return super().request(method, path, query, body)


NIGHT: Json = {"metadata": {"name": "night", "namespace": "images"}}
ABSENT = Missing('cronworkflows "night" not found.')
CHANGED = Conflict("night: was modified.")


@pytest.mark.parametrize(
    ("refusals", "methods"),
    [
        # By another client, or by this one, whose answer was lost.
        ((ABSENT, AlreadyExists("night: exists.")), ["GET", "POST", "GET", "PUT"]),
        ((None, CHANGED), ["GET", "PUT", "GET", "PUT"]),
        ((None, ABSENT, ABSENT), ["GET", "PUT", "GET", "POST"]),
    ],
    ids=["created", "changed", "deleted"],
)
def test_object_that_is_written_meanwhile_is_applied_to_what_is_there_then(
    refusals: tuple[KilnError | None, ...], methods: list[str]
) -> None:
    connection = Contested(NIGHT, *refusals)
    ArgoServer(connection).apply({"kind": "CronWorkflow", **NIGHT})
    assert connection.methods == methods


def test_object_that_others_write_again_and_again_is_given_up() -> None:
    argo = ArgoServer(Contested(NIGHT, *[None, CHANGED] * 9))
    with pytest.raises(Conflict):
        argo.apply({"kind": "CronWorkflow", **NIGHT})


@pytest.mark.parametrize("api", [ArgoServer, KubernetesApi])
def test_log_that_is_not_followed_has_an_end(api: type[ArgoServer | KubernetesApi]) -> None:
    limits: list[object] = []

    class Connection(Stream):
        def stream_lines(self, *arguments: object, **_: object) -> Iterator[str]:
            limits.append(arguments[2:])
            yield from ()

    for follow in (True, False):
        argo = api(cast("ApiConnection", Connection()))
        list(argo.logs("images", "postcards", "a", follow=follow))
    assert limits == [(3600,), (300,)]


def answering(answer: Json) -> ApiConnection:
    """A connection that gives every request the same answer."""

    class Connection(ApiConnection):
        def request(self, *_: object, **__: object) -> Json:
            return answer

    return Connection(ApiAccess("https://argo", lambda: None))
