"""What an API answers, as its caller hears it: an object, or a sentence and an exit code."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.workflows.connection import Access, Connection, Taken


class Answers(BaseHTTPRequestHandler):
    """Answers with the status in the path; a path of two is the first once, then the second."""

    asked: list[str]

    def do_GET(self) -> None:
        """Answer."""
        statuses = self.path.strip("/").split("-")
        status = int(statuses[min(len(self.asked), len(statuses) - 1)])
        self.asked.append(self.headers.get("Authorization", ""))
        body = json.dumps({"message": 'pods "a" is forbidden'}).encode() if status != 299 else b"<html>"
        self.send_response(status)
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
    [(400, BadInput), (401, BadInput), (403, BadInput), (404, Missing), (409, Taken), (503, TryAgain)],
)
def test_refusal_says_what_the_api_says_and_whether_to_try_again(
    url: str, asked: list[str], status: int, kind: type[KilnError]
) -> None:
    with pytest.raises(kind, match='pods "a" is forbidden'):
        Connection(Access(url, lambda: None)).ask("GET", str(status))
    assert len(asked) == (5 if kind is TryAgain else 1)


def test_trouble_that_passes_is_not_heard_of(url: str, asked: list[str]) -> None:
    assert "message" in Connection(Access(url, lambda: None)).ask("GET", "503-200")
    assert len(asked) == 2


def test_token_is_asked_for_anew_for_each_request(url: str, asked: list[str]) -> None:
    tokens = iter(["Bearer one", "Bearer two"])
    connection = Connection(Access(url, lambda: next(tokens)))
    connection.ask("GET", "200")
    connection.ask("GET", "200")
    assert asked == ["Bearer one", "Bearer two"]


def test_answer_of_something_else_is_told(url: str) -> None:
    with pytest.raises(BadInput, match="not JSON"):
        Connection(Access(url, lambda: None)).ask("GET", "299")


def test_api_that_is_not_there_is_tried_again() -> None:
    with pytest.raises(TryAgain, match=r"127.0.0.1:9: does not answer \(.*refused\)"):
        Connection(Access("http://127.0.0.1:9", lambda: None)).ask("GET", "200")
