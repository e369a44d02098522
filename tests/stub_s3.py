"""An S3 store in memory that fails on request, for what a real server cannot be made to do."""

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from tests.servers import running

# How a request fails: with an S3 error code and its HTTP status, with an answer that never arrives
# although the request was carried out, with an answer cut off in its middle, or not at all.
Fault = tuple[int, str] | Literal["lost", "cut", "none"]
SLOW_DOWN: Fault = (503, "SlowDown")
CONFLICT: Fault = (409, "ConditionalRequestConflict")
EXPIRED: Fault = (400, "ExpiredToken")


@dataclass(slots=True)
class StubS3:
    """The store: objects by path, faults of the next requests, and the requests so far."""

    conditional: bool = True
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    requests: list[str] = field(default_factory=list)
    endpoint: str = ""


@contextmanager
def stub_s3(conditional: bool = True) -> Iterator[StubS3]:
    """A store on loopback while the block runs; without `conditional` it ignores If-None-Match."""
    store = StubS3(conditional)
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))) as store.endpoint:
        yield store


def _handler(store: StubS3) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                store.requests.append(f"{self.command} {self.path}")
                fault = store.faults.popleft() if store.faults else "none"
                answer = (
                    _error(*fault)
                    if isinstance(fault, tuple)
                    else ANSWERS[self.command](store, self, body)
                )
            self.answer(*answer, fault)

        do_GET = do_HEAD = do_PUT = do_DELETE = handle_one  # noqa: N815  # names of the standard library

        def answer(self, status: int, body: bytes, fault: Fault) -> None:
            if fault == "lost":
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if status in (200, 206) and self.command in ("GET", "HEAD", "PUT"):
                for name, value in _facts(store.objects[self.path], self.headers.get("Range")):
                    self.send_header(name, value)
            self.send_header(
                "Content-Type", "application/xml" if status >= 300 else "application/octet-stream"
            )
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
            self.close_connection = fault == "cut"

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    return Handler


Answer = tuple[int, bytes]


def _error(status: int, code: str, extra: str = "") -> Answer:
    message = f"<Message>{code}, says the stub</Message>"
    return status, f"<Error><Code>{code}</Code>{message}{extra}</Error>".encode()


def _get(store: StubS3, request: BaseHTTPRequestHandler, _body: bytes) -> Answer:
    content = store.objects.get(request.path)
    if content is None:
        return _error(404, "NoSuchKey")
    byte_range = request.headers.get("Range")
    if byte_range is None:
        return 200, content
    first, _, last = byte_range.removeprefix("bytes=").partition("-")
    if not first:
        return 206, content[-int(last) :]
    return 206, content[int(first) : int(last) + 1 if last else None]


def _facts(content: bytes, byte_range: str | None) -> Iterator[tuple[str, str]]:
    """The headers in which a store says what the whole object is."""
    yield "ETag", f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
    if byte_range is not None:
        first, _, last = byte_range.removeprefix("bytes=").partition("-")
        end = min(int(last) + 1, len(content)) if last else len(content)
        start = int(first) if first else max(0, len(content) - int(last))
        end = end if first else len(content)
        yield "Content-Range", f"bytes {start}-{end - 1}/{len(content)}"


def _put(store: StubS3, request: BaseHTTPRequestHandler, body: bytes) -> Answer:
    if (
        store.conditional
        and request.headers.get("If-None-Match") == "*"
        and request.path in store.objects
    ):
        return _error(412, "PreconditionFailed", "<Condition>If-None-Match</Condition>")
    store.objects[request.path] = body
    return 200, b""


def _delete(store: StubS3, request: BaseHTTPRequestHandler, _body: bytes) -> Answer:
    store.objects.pop(request.path, None)
    return 204, b""


ANSWERS: dict[str, Callable[[StubS3, BaseHTTPRequestHandler, bytes], Answer]] = {
    "GET": _get,
    "HEAD": _get,
    "PUT": _put,
    "DELETE": _delete,
}
