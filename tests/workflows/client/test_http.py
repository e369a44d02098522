"""Requests to an API: JSON, or an error with a sentence and an exit code."""

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler

import pytest
import requests

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.workflows.client.failures import AlreadyExists, Conflict, Forbidden, LoginRefused
from imagekiln.workflows.client.http import ApiAccess, ApiConnection
from tests import certificates
from tests.servers import running

pytestmark = pytest.mark.usefixtures("retries_at_once")

ANONYMOUS = b'{"message": "pods is forbidden: User \\"system:anonymous\\" cannot list resource"}'
LOGIN = "https://me:hush@argo.example.com/login?state=hush"
BODIES = {
    299: b"<html>",
    410: b"<html><body>many words</body></html>",
    422: b"<html><body>many words</body></html>",
    403: ANONYMOUS,
    404: b'{"message": "the server could not find the requested resource"}',
}


class StatusHandler(BaseHTTPRequestHandler):
    """Answers with the status in the path; with 503-200, first with the one, then the other."""

    authorizations: list[str]

    def do_GET(self) -> None:
        """Send the next status, with the body for it."""
        statuses = self.path.rpartition("/")[2].split("-")
        status = int(statuses[min(len(self.authorizations), len(statuses) - 1)])
        self.authorizations.append(self.headers.get("Authorization", ""))
        body = BODIES.get(status, json.dumps({"message": 'pods "a" is forbidden'}).encode())
        self.send_response(status)
        if body.startswith(b"<html>"):
            self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def authorizations() -> list[str]:
    return []


@pytest.fixture
def url(authorizations: list[str]) -> Iterator[str]:
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (StatusHandler,), {"authorizations": authorizations})
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, BadInput), (401, BadInput), (409, AlreadyExists), (408, TryAgain), (503, TryAgain)],
)
def test_error_has_the_message_of_the_api_and_says_whether_to_run_again(
    url: str, authorizations: list[str], status: int, kind: type[KilnError]
) -> None:
    with pytest.raises(kind, match='pods "a" is forbidden'):
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", str(status))
    assert len(authorizations) == (5 if kind is TryAgain else 1)


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (403, BadInput, "did not accept the login"),
        (404, Missing, "Check that Argo is installed"),
        (410, TryAgain, r"failed \(410: Gone\)\. Run again\.$"),  # a list that took too long
        (422, BadInput, r"rejected the request \(Unprocessable (Entity|Content)\)\.$"),
    ],
)
def test_misleading_message_of_the_api_is_replaced(
    url: str, status: int, kind: type[KilnError], says: str
) -> None:
    with pytest.raises(kind, match=says) as raised:
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", str(status))
    assert not isinstance(raised.value, Forbidden)


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (401, LoginRefused, r"\. Log in again\.$"),
        (403, Forbidden, r"\. Ask for the Role imagekiln-submitter\.$"),
        (404, Missing, r": no such pod\.$"),
    ],
)
def test_login_that_is_refused_and_a_right_that_lacks_are_told_apart(
    url: str, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[KilnError], says: str
) -> None:
    monkeypatch.setitem(BODIES, status, b'{"message": "no such pod"}')
    with pytest.raises(KilnError, match=says) as raised:
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", str(status))
    assert type(raised.value) is kind


@pytest.mark.parametrize("status", [409, 500])
def test_object_that_somebody_changed_meanwhile_is_to_be_asked_for_again(
    url: str, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    message = 'Operation cannot be fulfilled on "night": the object has been modified; try again'
    monkeypatch.setitem(BODIES, status, json.dumps({"message": message}).encode())
    with pytest.raises(Conflict, match=r"try again\. Run again\."):
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", str(status))


def test_namespace_that_is_not_set_up_is_said_with_what_to_do(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BODIES, 404, rb'{"message": "namespaces \"walker\" not found"}')
    with pytest.raises(Missing, match="Set it up with `imagekiln manifests"):
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", "404")


@pytest.mark.parametrize("token", ["Bearer se\ncret", "Bearer secret\u2026"])
def test_token_that_cannot_be_sent_is_not_printed(
    url: str, authorizations: list[str], token: str
) -> None:
    with pytest.raises(BadInput, match="the token contains characters") as raised:
        ApiConnection(ApiAccess(url, lambda: token)).request("GET", "200")
    assert "cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert not authorizations


def test_request_goes_through_the_proxy(url: str, authorizations: list[str]) -> None:
    # Clients request whole URLs of a proxy; this one takes the last part of the path.
    answer = ApiConnection(ApiAccess("http://argo.invalid:2746", lambda: None, proxy=url)).request(
        "GET", "200"
    )
    assert "message" in answer
    assert len(authorizations) == 1


def test_credentials_in_a_url_are_used_and_not_printed(url: str, authorizations: list[str]) -> None:
    connection = ApiConnection(ApiAccess(url.replace("//", "//me:hush@"), lambda: None))
    with pytest.raises(BadInput, match=f"^{url}: ") as raised:
        connection.request("GET", "401")
    assert "hush" not in str(raised.value)
    assert authorizations[0].startswith("Basic ")


def test_server_without_tls_is_distinguished_from_an_untrusted_one(url: str) -> None:
    with pytest.raises(BadInput, match="does not use TLS"):
        ApiConnection(ApiAccess(url.replace("http:", "https:"), lambda: None)).request("GET", "200")


@pytest.mark.parametrize("address", ["http://[", "ftp://argo", "https://me:hu/sh@argo"])
def test_invalid_address_is_not_tried_again(address: str) -> None:
    with pytest.raises(BadInput, match="is not a valid address") as raised:
        ApiConnection(ApiAccess(address, lambda: None)).request("GET", "200")
    assert "hu" not in str(raised.value)


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_redirect_is_refused_and_no_other_request_made_in_its_place(verb: str, status: int) -> None:
    with answering(b"", status, {"Location": LOGIN}) as (
        url,
        requests,
    ):
        connection = ApiConnection(ApiAccess(url, lambda: "Bearer secret"))
        with pytest.raises(BadInput, match=r"redirects to https://\S+@argo\.example") as raised:
            connection.request(verb, "api")
    assert requests == [verb]
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("content", [b"[]", b"null", b"<html>"])
def test_answer_of_another_form_is_an_error(content: bytes) -> None:
    with answering(content) as (url, _), pytest.raises(BadInput, match="answer is not"):
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", "api")


def test_server_that_cannot_be_reached_or_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[tuple[float, float]] = []

    def give_up(*_: object, timeout: tuple[float, float], **_options: object) -> None:
        limits.append(timeout)
        raise requests.ConnectTimeout

    monkeypatch.setattr(requests.Session, "request", give_up)
    with pytest.raises(TryAgain, match="did not answer"):
        ApiConnection(ApiAccess("https://argo.example.com", lambda: None)).request("GET", "api")
    ((connecting, silence),) = limits
    assert connecting <= 10
    assert silence <= 60


def test_api_that_asks_to_wait_for_an_hour_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr("time.sleep", sleeps.append)
    with answering(b"", 503, {"Retry-After": "3600"}) as (url, verbs), pytest.raises(TryAgain):
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", "api")
    assert len(verbs) == 5
    assert max(sleeps, default=0.0) < 60


def test_file_of_certificates_that_is_missing_is_named() -> None:
    access = ApiAccess("https://argo.invalid:2746", lambda: None, verify="/missing/ca.pem")
    with pytest.raises(BadInput, match=r"/missing/ca\.pem\. Set REQUESTS_CA_BUNDLE"):
        ApiConnection(access).request("GET", "version")


def test_certificate_of_the_client_that_does_not_do_is_not_blamed_on_the_server(
    tmp_path: Path,
) -> None:
    own, other = (certificates.write(tmp_path / name) for name in ("own", "other"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other["certificate"], other["key"])
    context.verify_mode = ssl.CERT_REQUIRED  # by no authority
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # in later ones, the refusal may get lost
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server) as url:
        https = url.replace("http:", "https:")
        for key in (own["key"], other["key"]):
            pair = (own["certificate"], key)
            access = ApiAccess(https, lambda: None, verify=False, certificate=pair)
            with pytest.raises(BadInput, match=r"the client's certificate \(.* in kubeconfig"):
                ApiConnection(access).request("GET", "version")


def test_server_that_ends_a_connection_before_it_is_secure_may_be_tried_again() -> None:
    class Closing(StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(2**16)

    with running(HTTPServer(("127.0.0.1", 0), Closing)) as url:
        access = ApiAccess(url.replace("http:", "https:"), lambda: None)
        with pytest.raises(TryAgain, match="ended the connection before it answered"):
            ApiConnection(access).request("GET", "version")


def test_host_of_a_proxy_that_is_no_name_is_refused() -> None:
    access = ApiAccess("https://argo.invalid:2746", lambda: None, proxy="http://\u00e4..b:1")
    with pytest.raises(BadInput, match="its proxy's is not"):
        ApiConnection(access).request("GET", "version")


def test_lines_of_a_log_are_those_that_were_written() -> None:
    log = "drawn 1\r\n\n10%\r20%\r\ndrawn \N{SNOWMAN}\nlast".encode()
    with answering(log) as (url, _):
        lines = list(ApiConnection(ApiAccess(url, lambda: None)).stream_lines("log"))
    assert lines == ["drawn 1", "", "10%", "20%", "drawn \N{SNOWMAN}", "last"]


def test_log_whose_connection_breaks_asks_to_run_again() -> None:
    with answering(b"drawn\n", headers={"Content-Length": "100"}) as (url, _):
        lines = ApiConnection(ApiAccess(url, lambda: None)).stream_lines("log")
        with pytest.raises(TryAgain, match="the connection broke"):
            list(lines)


@contextmanager
def answering(
    content: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """The URL of a server with this answer to all requests, and the verbs of those so far."""
    verbs: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            verbs.append(self.command)
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client may have seen enough
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url, verbs


def test_transient_failure_is_retried_silently(url: str, authorizations: list[str]) -> None:
    assert "message" in ApiConnection(ApiAccess(url, lambda: None)).request("GET", "503-200")
    assert len(authorizations) == 2


def test_token_is_read_for_each_request(url: str, authorizations: list[str]) -> None:
    tokens = iter(["Bearer one", "Bearer two"])
    connection = ApiConnection(ApiAccess(url, lambda: next(tokens)))
    connection.request("GET", "200")
    connection.request("GET", "200")
    assert authorizations == ["Bearer one", "Bearer two"]


def test_answer_that_is_not_json_is_an_error(url: str) -> None:
    with pytest.raises(BadInput, match="not JSON"):
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", "299")


def test_api_that_does_not_answer_asks_to_run_again() -> None:
    with pytest.raises(TryAgain, match=r"127.0.0.1:9: did not answer \(.*refused\)"):
        ApiConnection(ApiAccess("http://127.0.0.1:9", lambda: None)).request("GET", "200")
