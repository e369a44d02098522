"""Requests to an API: JSON, or an error with a sentence and an exit code."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.workflows.client.connect import argo_server_access
from imagekiln.workflows.client.http import AlreadyExists, ApiConnection, Forbidden, LoginRefused
from tests.servers import running

pytestmark = pytest.mark.usefixtures("retries_at_once")


class Api:
    """An API on loopback: its answers by path, and the logins that it has seen."""

    def __init__(self) -> None:
        """Answer every path with an empty object."""
        self.url = ""
        self.statuses = [200]
        self.body = b"{}"
        self.logins: list[str] = []

    def connection(self, url: str = "", token: str = "") -> ApiConnection:
        """A connection to it, or to another URL."""
        return ApiConnection(argo_server_access(url or self.url, {"ARGO_TOKEN": token}))

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error from now on."""
        self.statuses = [status]
        self.body = json.dumps({"message": message}).encode()


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            api.logins.append(self.headers.get("Authorization", ""))
            status = api.statuses.pop(0) if len(api.statuses) > 1 else api.statuses[0]
            self.send_response(status)
            self.send_header("Retry-After", "3600")
            if status == 302:
                self.send_header("Location", "https://me:hush@login.example.com")
            self.end_headers()
            self.wfile.write(api.body)

        do_GET = do_POST = answer  # noqa: N815  # names of the standard library

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as api.url:
        yield api


@pytest.mark.parametrize(
    ("status", "message", "kind", "says"),
    [
        (400, "bad spec", BadInput, "If this is not the API, write its own address."),
        (401, "expired", LoginRefused, "did not accept the login (expired). Log in again."),
        (403, 'User "system:anonymous" cannot list', LoginRefused, "Log in again."),
        (403, "no right", Forbidden, "Ask for the Role imagekiln-submitter."),
        (404, "no such pod", Missing, ": no such pod."),
        (404, "the server could not find the requested resource", Missing, "doctor JOB`."),
        (404, 'namespaces "a" not found', Missing, "or set cluster.namespace."),
        (404, 'workflows.argoproj.io "night" not found', Missing, "lists those of a namespace."),
        (409, "it exists", AlreadyExists, ": it exists."),
        (500, "the object has been modified", TryAgain, "Run again."),
        (503, "busy", TryAgain, "failed (503: busy). Run again."),
    ],
)  # fmt: skip
def test_error_has_the_message_of_the_api_and_says_what_to_do(
    api: Api, status: int, message: str, kind: type[KilnError], says: str
) -> None:
    api.refuse(status, message)
    with pytest.raises(KilnError) as raised:
        api.connection().request("GET", "version")
    assert type(raised.value) is kind
    assert str(raised.value).startswith(f"{api.url}: ")
    assert str(raised.value).endswith(says)
    assert len(api.logins) == (5 if status in (500, 503) else 1)


def test_transient_failure_is_retried_at_once_whatever_the_api_asks_for(api: Api) -> None:
    api.statuses = [503, 200]
    assert api.connection().request("POST", "version", body={}) == {}
    assert len(api.logins) == 2


@pytest.mark.parametrize("content", [b"[]", b"<html>"])
def test_answer_of_another_form_is_an_error(api: Api, content: bytes) -> None:
    api.body = content
    with pytest.raises(BadInput, match="answer is not a JSON object"):
        api.connection().request("GET", "version")


def test_redirect_is_refused_and_no_other_request_made_in_its_place(api: Api) -> None:
    api.statuses = [302]
    with pytest.raises(BadInput, match=r"rejected the request \(302: Found") as raised:
        api.connection(token="secret").request("POST", "version", body={})  # noqa: S106
    assert len(api.logins) == 1
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("token", ["Bearer se\ncret", "Bearer secret\u2026"])
def test_token_that_cannot_be_sent_is_not_printed(api: Api, token: str) -> None:
    with pytest.raises(BadInput, match="the token is not valid") as raised:
        api.connection(token=token).request("GET", "version")
    assert "cret" not in str(raised.value)
    assert raised.value.__suppress_context__
    assert not api.logins


@pytest.mark.parametrize(
    ("address", "kind", "says"),
    [
        ("https://{host}", BadInput, "does not use TLS"),
        ("https://me:hu/sh@argo", BadInput, "is not valid"),
        ("http://127.0.0.1:9", TryAgain, r"did not answer \(.*refused"),
    ],
)
def test_address_that_does_not_answer_is_explained(
    api: Api, address: str, kind: type[KilnError], says: str
) -> None:
    connection = api.connection(address.format(host=api.url.removeprefix("http://")))
    with pytest.raises(kind, match=says):
        connection.request("GET", "version")


def test_login_is_renewed_for_each_request(api: Api) -> None:
    tokens = iter(["one", "two"])
    configuration = argo_server_access(api.url, {"ARGO_TOKEN": "old"})

    def renew(_: object) -> None:
        configuration.api_key["authorization"] = next(tokens)

    configuration.refresh_api_key_hook = renew
    connection = ApiConnection(configuration)
    connection.request("GET", "version")
    connection.request("GET", "version")
    assert api.logins == ["one", "two"]


def test_lines_of_a_log_are_those_that_were_written(api: Api) -> None:
    api.body = "drawn 1\r\n\n10%\r20%\r\ndrawn \N{SNOWMAN}\nlast".encode()
    lines = list(api.connection().stream_lines("log"))
    assert lines == ["drawn 1", "", "10%", "20%", "drawn \N{SNOWMAN}", "last"]
