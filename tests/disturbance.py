"""A proxy before an S3 server that spoils answers: bodies, lengths and refusals, one at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

from tests.servers import running

READS = ("GET", "HEAD")
HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered, or what the client gets in its place."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def with_body(self, body: bytes) -> "Answer":
        """The same headers over another body, whose length the client is told."""
        return replace(self, body=body)

    def with_header(self, name: str, value: str) -> "Answer":
        """The same body under another header of this name."""
        others = [header for header in self.headers if header[0].lower() != name.lower()]
        return replace(self, headers=(*others, (name, value)))


Fault = Callable[[Answer], Answer]


def _error(status: int, code: str) -> Fault:
    body = f"<Error><Code>{code}</Code><Message>{code}, says the proxy</Message></Error>".encode()
    return lambda _: Answer(status, (("Content-Type", "application/xml"),), body)


def _garbage(answer: Answer) -> Answer:
    middle = len(answer.body) // 2
    flipped = bytes(byte ^ 0x55 for byte in answer.body[middle : middle + 64])
    return answer.with_body(answer.body[:middle] + flipped + answer.body[middle + 64 :])


# A page of some gateway, without anything of the store's own answer.
SIGN_IN_PAGE = Answer(200, (("Content-Type", "text/html"),), b"<html>please sign in</html>")
EXPIRED_FAULTS: dict[str, Fault] = {
    "expired": _error(400, "ExpiredToken"),
    "invalid": _error(403, "InvalidToken"),
}
DENIED = _error(403, "AccessDenied")
PASSING_FAULTS: dict[str, Fault] = {
    "empty": lambda answer: answer.with_body(b""),
    "short": lambda answer: answer.with_body(answer.body[: len(answer.body) // 2]),
    "garbage": _garbage,
    "replaced": lambda _: SIGN_IN_PAGE,
    "absent": _error(404, "NoSuchKey"),
    "denied": DENIED,
}


@dataclass(slots=True)
class Disturbance:
    """Where the proxy listens, and what it does: `choose` gives the fault of a request, if any."""

    endpoint: str = ""
    choose: Callable[[str], Fault | None] = field(default=lambda _: None)
    requests: list[str] = field(default_factory=list)
    faults: int = 0

    def once_each(self, fault: Fault) -> None:
        """Spoil the first answer to each different request for reading; a repetition succeeds."""
        spoiled: set[str] = set()

        def choose(request: str) -> Fault | None:
            if request in spoiled or not request.startswith(READS):
                return None
            spoiled.add(request)
            return fault

        self.choose = choose

    def always_from(self, number: int, fault: Fault) -> None:
        """Spoil the answers to all requests for reading from this one on, counted from zero."""
        reads = count()

        def choose(request: str) -> Fault | None:
            is_read = request.startswith(READS)
            return fault if is_read and next(reads) >= number else None

        self.choose = choose

    def always(self, fault: Fault, methods: tuple[str, ...] = READS) -> None:
        """Spoil the answers to all requests with these methods."""
        self.choose = lambda request: fault if request.startswith(methods) else None

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

    def spoil(self, request: str, answer: Answer) -> Answer:
        """The answer that the client gets."""
        with self.lock:
            self.proxy.requests.append(request)
            fault = self.proxy.choose(request)
            self.proxy.faults += fault is not None
        return answer if fault is None else fault(answer)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        byte_range = self.headers.get("Range", "")
        request = f"{self.command} {self.path} {byte_range}".rstrip()
        answer = self.server.spoil(request, self.forward(body))
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        if self.command != "HEAD" and answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815  # names of the standard library

    def forward(self, body: bytes) -> Answer:
        """What the server answers to this request, which stays signed for the proxy's name."""
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

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""
