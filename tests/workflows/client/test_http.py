"""What an API answers, as its caller hears it: an object, or a sentence and an exit code."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.workflows.client.failures import AlreadyExists, Forbidden
from imagekiln.workflows.client.http import ApiAccess, ApiConnection

ANONYMOUS = b'{"message": "pods is forbidden: User \\"system:anonymous\\" cannot list resource"}'
SAID = {
    299: b"<html>",
    410: b"<html><body>many words</body></html>",
    403: ANONYMOUS,
    404: b'{"message": "the server could not find the requested resource"}',
}


class Answers(BaseHTTPRequestHandler):
    """Answers with the status in the path; a path of two is the first once, then the second."""

    asked: list[str]

    def do_GET(self) -> None:
        """Answer."""
        statuses = self.path.rpartition("/")[2].split("-")
        status = int(statuses[min(len(self.asked), len(statuses) - 1)])
        self.asked.append(self.headers.get("Authorization", ""))
        body = SAID.get(status, json.dumps({"message": 'pods "a" is forbidden'}).encode())
        self.send_response(status)
        if body.startswith(b"<html>"):
            self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def url(asked: list[str]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Kept", (Answers,), {"asked": asked}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, BadInput), (401, BadInput), (409, AlreadyExists), (503, TryAgain)],
)
def test_refusal_says_what_the_api_says_and_whether_to_try_again(
    url: str, asked: list[str], status: int, kind: type[KilnError]
) -> None:
    with pytest.raises(kind, match='pods "a" is forbidden'):
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", str(status))
    assert len(asked) == (5 if kind is TryAgain else 1)


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (403, BadInput, "does not know you"),
        (404, Missing, "Is Argo installed there"),
        (410, BadInput, r"refuses this \(Gone\)\.$"),
    ],
)
def test_refusal_that_would_mislead_is_said_otherwise(
    url: str, status: int, kind: type[KilnError], says: str
) -> None:
    with pytest.raises(kind, match=says) as raised:
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", str(status))
    assert not isinstance(raised.value, Forbidden)


@pytest.mark.parametrize("token", ["Bearer se\ncret", "Bearer secret\u2026"])
def test_token_that_cannot_be_sent_is_not_printed(url: str, asked: list[str], token: str) -> None:
    with pytest.raises(BadInput, match="the token has signs") as raised:
        ApiConnection(ApiAccess(url, lambda: token)).request("GET", "200")
    assert "cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert not asked


def test_request_goes_by_the_proxy_that_is_named(url: str, asked: list[str]) -> None:
    # A proxy is asked for whole URLs; this one takes the path's last part for the status.
    answer = ApiConnection(ApiAccess("http://argo.invalid:2746", lambda: None, proxy=url)).request(
        "GET", "200"
    )
    assert "message" in answer
    assert len(asked) == 1


def test_login_in_an_address_is_used_and_not_printed(url: str, asked: list[str]) -> None:
    connection = ApiConnection(ApiAccess(url.replace("//", "//me:hush@"), lambda: None))
    with pytest.raises(BadInput, match=f"^{url}: ") as raised:
        connection.request("GET", "401")
    assert "hush" not in str(raised.value)
    assert asked[0].startswith("Basic ")


def test_server_that_speaks_no_tls_is_told_from_one_that_is_not_trusted(url: str) -> None:
    with pytest.raises(BadInput, match="speaks no TLS"):
        ApiConnection(ApiAccess(url.replace("http:", "https:"), lambda: None)).request("GET", "200")


@pytest.mark.parametrize("address", ["http://[", "ftp://argo"])
def test_address_that_is_none_is_not_tried_again(address: str) -> None:
    with pytest.raises(BadInput, match="is no address"):
        ApiConnection(ApiAccess(address, lambda: None)).request("GET", "200")


def test_trouble_that_passes_is_not_heard_of(url: str, asked: list[str]) -> None:
    assert "message" in ApiConnection(ApiAccess(url, lambda: None)).request("GET", "503-200")
    assert len(asked) == 2


def test_token_is_asked_for_anew_for_each_request(url: str, asked: list[str]) -> None:
    tokens = iter(["Bearer one", "Bearer two"])
    connection = ApiConnection(ApiAccess(url, lambda: next(tokens)))
    connection.request("GET", "200")
    connection.request("GET", "200")
    assert asked == ["Bearer one", "Bearer two"]


def test_answer_of_something_else_is_told(url: str) -> None:
    with pytest.raises(BadInput, match="not JSON"):
        ApiConnection(ApiAccess(url, lambda: None)).request("GET", "299")


def test_api_that_is_not_there_is_tried_again() -> None:
    with pytest.raises(TryAgain, match=r"127.0.0.1:9: does not answer \(.*refused\)"):
        ApiConnection(ApiAccess("http://127.0.0.1:9", lambda: None)).request("GET", "200")
