"""A proxy before an S3 server that spoils requests and answers, as networks and servers do."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from select import select

from tests.servers import running

SLOW_PIECES = 8
HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered, or what the client gets in its place."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    announced: int | None = None  # the length in the header, where it is not that of the body
    pause_seconds: float = 0.0  # after each of the pieces in which the body comes

    def header(self, name: str, default: str) -> str:
        """The value of a header."""
        values = {other.lower(): value for other, value in self.headers}
        return values.get(name.lower(), default)


Forward = Callable[[], Answer]  # passes a request on to the server, and gives its answer
# What becomes of a request that `Forward` passes on to the server; None where the connection ends.
Fault = Callable[[Forward], Answer | None]


def request_name(request: str) -> str:
    """The method and the path of a request, without the range of bytes that it asks for."""
    return " ".join(request.split(" ")[:2])


def spoiled(change: Callable[[Answer], Answer]) -> Fault:
    """A fault of the answer alone."""
    return lambda forward: change(forward())


def lost(answer: Answer | None = None) -> Fault:
    """A fault of a request that never reaches the server, and is answered so."""
    return lambda _: answer


def _error(status: int, code: str) -> Answer:
    message = f"<Message>{code}, says the proxy</Message>"
    body = f"<Error><Code>{code}</Code>{message}</Error>".encode()
    return Answer(status, (("Content-Type", "application/xml"),), body)


def _reset(forward: Forward) -> None:
    """The server acts, and nobody learns of it."""
    forward()


def _twice(forward: Forward) -> Answer:
    """A gateway repeats the request by itself, and gives the second answer."""
    forward()
    return forward()


def _cut(answer: Answer) -> Answer:
    half = answer.body[: len(answer.body) // 2]
    return replace(answer, body=half, announced=len(answer.body))


# A page of some gateway, without anything of the store's own answer.
SIGN_IN_PAGE = Answer(200, (("Content-Type", "text/html"),), b"<html>please sign in</html>")
# Faults of a store that is trusted: it fails, is slow, or its connection breaks.
SERVER_FAULTS: dict[str, Fault] = {
    "error": lost(_error(500, "InternalError")),
    "error after acting": spoiled(lambda _: _error(500, "InternalError")),
    "slow down": lost(_error(503, "SlowDown")),
    "unavailable": lost(_error(503, "ServiceUnavailable")),
    "too many": lost(_error(429, "TooManyRequests")),
    "bad gateway": spoiled(lambda _: replace(SIGN_IN_PAGE, status=502)),
    "timeout": lost(_error(400, "RequestTimeout")),
    "conflict": lost(_error(409, "ConditionalRequestConflict")),
    "aborted": lost(_error(409, "OperationAborted")),
    "bad digest": lost(_error(400, "BadDigest")),
    "skewed clock": lost(_error(403, "RequestTimeTooSkewed")),
    "unanswered": lost(),
    "reset": _reset,
    "twice": _twice,
    "cut": spoiled(_cut),
    "slow": spoiled(lambda answer: replace(answer, pause_seconds=0.01)),
}


@dataclass(slots=True)
class Disturbance:
    """Where the proxy listens, and what it does: `choose` gives the fault of a request, if any."""

    endpoint: str = ""
    choose: Callable[[str], Fault | None] = field(default=lambda _: None)
    requests: list[str] = field(default_factory=list)
    faults: int = 0

    def from_request(self, request: str, number: int, fault: Fault, times: float = 1) -> None:
        """Spoil this request when it is made for the `number`-th time, and those that follow it.

        `request` is a method and a path, `number` counts from zero, and `times` are the requests
        that are spoiled in all, whichever follow.
        """
        same = count()
        spoiled_requests = count()
        is_begun = False

        def choose(current: str) -> Fault | None:
            nonlocal is_begun
            if not is_begun and request_name(current) == request:
                is_begun = next(same) == number
            return fault if is_begun and next(spoiled_requests) < times else None

        self.choose = choose

    def rest(self) -> None:
        """Pass all answers on, and forget the requests so far."""
        self.choose = lambda _: None
        self.requests.clear()
        self.faults = 0


@contextmanager
def disturbance(endpoint: str) -> Iterator[Disturbance]:
    """A proxy before the server at `endpoint` while the block runs; at first, it spoils nothing."""
    proxy = Disturbance()
    with running(_Server(proxy, endpoint.removeprefix("http://"))) as proxy.endpoint:
        yield proxy


class _Server(ThreadingHTTPServer):
    def __init__(self, proxy: Disturbance, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.upstream = upstream
        self.lock = threading.Lock()

    def choose(self, request: str) -> Fault | None:
        """The fault of the next request, which is noted."""
        with self.lock:
            self.proxy.requests.append(request)
            fault = self.proxy.choose(request)
            self.proxy.faults += fault is not None
        return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        byte_range = self.headers.get("Range", "")
        request = f"{self.command} {self.path} {byte_range}".rstrip()
        fault = self.server.choose(request)
        forward = partial(self.forward, body)
        answer = forward() if fault is None else fault(forward)
        if answer is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        if self.command == "HEAD":
            self.send_header("Content-Length", answer.header("Content-Length", "0"))
        elif answer.status != 204:
            length = len(answer.body) if answer.announced is None else answer.announced
            self.send_header("Content-Length", str(length))
            self.close_connection = length > len(answer.body)
        self.end_headers()
        if self.command != "HEAD":
            self.write_body(answer)

    def write_body(self, answer: Answer) -> None:
        """Send it in pieces where it is to come slowly."""
        pieces = SLOW_PIECES if answer.pause_seconds else 1
        length = len(answer.body) // pieces + 1
        for start in range(0, len(answer.body), length):
            self.wfile.write(answer.body[start : start + length])
            time.sleep(answer.pause_seconds)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815  # names of the standard library

    def forward(self, body: bytes) -> Answer:
        """What the server answers to this request, which stays signed for the proxy's name.

        One whose client has given up, while a fault held it, never reaches the server.
        """
        if self.is_client_gone():
            raise ConnectionAbortedError
        connection = HTTPConnection(self.server.upstream)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() != "expect":
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            headers = tuple(response.getheaders())
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()

    def is_client_gone(self) -> bool:
        """Whether the client has closed the connection."""
        readable, _, _ = select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def handle(self) -> None:
        """Answer requests until the client goes, which it may do at any moment."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""
