"""HTTP to a cluster's API: with timeouts, retries, and failures as sentences."""

import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3 import PoolManager, disable_warnings
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import ConnectionPool, HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, InsecureRequestWarning
from urllib3.response import BaseHTTPResponse, HTTPResponse
from urllib3.util.retry import Retry

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.api import CHECK_ADDRESS, require_list
from imagekiln.workflows.client.failures import (
    TRANSIENT_STATUSES,
    connection_error,
    is_token_error,
    redirect_error,
    response_error,
    root_cause_message,
)
from imagekiln.workflows.objects import Json, get_mapping

CONNECT_TIMEOUT = 5
READ_TIMEOUT = 30
ANSWER_TIMEOUT = 300  # for the whole of an answer, which may come byte by byte
MAX_PAGES = 1000  # of a list
MAX_ANSWER_BYTES = 2**29  # of 200 objects, each of which is a megabyte or two
HEADER_SECONDS = 300  # for the headers of an answer, beyond the silence that is allowed
PIECE_BYTES = 2**16  # that are read at once, or what has arrived
MAX_DEPTH = 100  # of objects and lists in an answer: Argo's own have some twenty
BRACKET_OR_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]')
MAX_LINE_BYTES = 2**24  # of a stream: what is longer comes as several lines
STREAM_TIMEOUT = 3600  # a log that is followed may stay silent for so long
MAX_RETRIES = 4  # of one HTTP request; pods are retried by templates/pod_retries.py
URL_CREDENTIALS = re.compile(r"//[^/@]*@")  # stripped from URLs in messages
JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where an API is and how to log in.

    `token` is called for each request, since tokens expire. `verify` may be a file of certificate
    authorities. `server_name` is the name in the certificate where it is not the URL's host.
    `origin` says in messages where the URL is from, such as ", from ARGO_BASE_URL".
    """

    url: str
    token: Callable[[], str | None]
    verify: bool | str = True
    certificate: tuple[str, str] | None = None
    proxy: str | None = None
    server_name: str | None = None
    origin: str = ""


class ApiConnection:
    """An HTTP session with one API.

    Requests raise Missing, AlreadyExists, Forbidden, BadInput and TryAgain. `where` is the URL as
    messages have it.
    """

    def __init__(self, access: ApiAccess) -> None:
        """Prepare a session; nothing is sent yet."""
        self._access = access
        self._base = access.url.rstrip("/")
        self._session = _open_session(access)
        self.url = URL_CREDENTIALS.sub("//", self._base)
        self.where = self.url + access.origin

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        *,
        content_type: str = JSON_TYPE,
        accept: str = JSON_TYPE,
    ) -> Json:
        """The JSON answer to one request."""
        headers = {"Content-Type": content_type, "Accept": accept}
        with self._send(method, path, query, body, headers) as response:
            content = self._read(response)
        try:
            answer = _parse_json(content)
        except (ValueError, RecursionError) as error:
            if content.lstrip()[:1] in (b"", b"{"):
                raise TryAgain(
                    f"{self.where}: the answer is cut off. Run again; if it stays so, check that "
                    "this is the address of the API."
                ) from error
            raise self._no_api("the answer is not JSON") from error
        if not isinstance(answer, dict):
            raise self._no_api("the answer is not a JSON object")
        return cast("Json", answer)

    def list_items(
        self, path: str, query: Mapping[str, str], accept: str = JSON_TYPE
    ) -> Iterator[Json]:
        """The items of a Kubernetes list, requested in pages of the query's `limit`."""
        page_query = dict(query)
        for _ in range(MAX_PAGES):
            page = self.request("GET", path, page_query, accept=accept)
            yield from require_list(page, self.where)

            continuation = get_mapping(page, "metadata").get("continue")
            if not continuation:
                return
            page_query["continue"] = str(continuation)
        raise self._no_api(f"the list has more than {MAX_PAGES} pages")

    def stream_lines(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        max_silence: int = STREAM_TIMEOUT,
        max_seconds: float = math.inf,
    ) -> Iterator[str]:
        """The lines of an answer, as they arrive: in pieces at most `max_silence` seconds apart.

        Raises TryAgain where it goes on for `max_seconds`.
        """
        with self._send("GET", path, query, None, {}, max_silence=max_silence) as response:
            for line in _split_lines(self._pieces(response, max_seconds)):
                yield line.decode(errors="replace")

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        headers: Mapping[str, str],
        *,
        max_silence: int = READ_TIMEOUT,
    ) -> requests.Response:
        """Send one request. Its answer has been accepted, and is yet to be read."""
        token = self._access.token()
        authorization = {"Authorization": token} if token else {}
        try:
            response = self._session.request(
                method,
                f"{self._base}/{path}",
                params=query,
                json=body,
                headers={**headers, **authorization},
                timeout=(CONNECT_TIMEOUT, max_silence),
                stream=True,
            )
        except (OSError, HTTPError, UnicodeError) as error:
            # The cause of a token's error quotes the token.
            cause = None if is_token_error(error) else error
            raise connection_error(error, self.where) from cause

        if response.ok and not response.is_redirect:
            return response
        with response:
            if response.is_redirect:
                raise redirect_error(response, self.where)
            raise response_error(response, self._read(response), self.where)

    def _read(self, response: requests.Response) -> bytes:
        """The whole of an answer, which neither goes on for ever nor fills the memory."""
        content = bytearray()
        for piece in self._pieces(response, ANSWER_TIMEOUT):
            content += piece
            if len(content) > MAX_ANSWER_BYTES:
                raise self._no_api(f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
        return bytes(content)

    def _pieces(self, response: requests.Response, max_seconds: float) -> Iterator[bytes]:
        """The bytes of an answer as they arrive."""
        deadline = time.monotonic() + max_seconds
        try:
            while piece := response.raw.read1(PIECE_BYTES, decode_content=True):
                yield piece
                if time.monotonic() >= deadline:
                    raise TryAgain(
                        f"{self.where}: the answer takes more than {max_seconds:g} s. Check the "
                        "network, then run again."
                    )
        except HTTPError as error:
            raise TryAgain(
                f"{self.where}: the connection broke ({root_cause_message(error)}). Run again."
            ) from error

    def _no_api(self, problem: str) -> BadInput:
        return BadInput(f"{self.where}: {problem}. {CHECK_ADDRESS}")


def log_limits(*, follow: bool) -> tuple[int, float]:
    """For how many seconds a log may be silent, and go on. What a pod has written comes at once."""
    return (STREAM_TIMEOUT, math.inf) if follow else (ANSWER_TIMEOUT, STREAM_TIMEOUT)


def _parse_json(content: bytes) -> object:
    """What JSON says. What is nested deeper than Argo nests anything counts as null.

    Kubernetes takes 10,000 levels from whoever writes one object, and Python reads some thousand.
    """
    try:
        return json.loads(content)
    except RecursionError:
        return json.loads(_without_depths(content))


def _without_depths(content: bytes) -> bytes:
    kept = bytearray()
    depth, start = 0, 0
    for match in BRACKET_OR_STRING.finditer(content):
        if match[0] in b"[{":
            depth += 1
            if depth == MAX_DEPTH:
                kept += content[start : match.start()] + b"null"
        elif match[0] in b"]}":
            if depth == MAX_DEPTH:
                start = match.end()
            depth -= 1
    return bytes(kept + content[start:]) if depth < MAX_DEPTH else bytes(kept)


def _split_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of a stream, each when it is whole. A carriage return alone ends one, too."""
    pending = bytearray()
    for piece in pieces:
        first, *others = piece.split(b"\n")
        pending += first
        for start in others:
            yield from bytes(pending).splitlines() or [b""]
            pending = bytearray(start)
        if len(pending) > MAX_LINE_BYTES:
            yield bytes(pending)
            pending.clear()
    yield from bytes(pending).splitlines()


class ClosingRetry(Retry):
    """Leaves unread what comes with a failure that is retried: it may have no end.

    Otherwise urllib3 reads all of it, so that the connection may serve again.
    """

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """What is left to try after this failure. The last one may be read."""
        left = super().increment(method, url, response, error, _pool, _stacktrace)
        if response is not None:
            response.close()
        return left


class DirectSession(requests.Session):
    """Follows no redirect: most requests would become a GET, and may reach a private service.

    With `allow_redirects=False`, requests would still read all that comes with one, which may have
    no end, and make an address of where it leads.
    """

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Nowhere."""


class _PlainConnection(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 has it
        """The answer, as far as its headers."""
        with _in_time(self):
            return super().getresponse()


class _TlsConnection(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 has it
        """The answer, as far as its headers."""
        with _in_time(self):
            return super().getresponse()


@contextmanager
def _in_time(connection: HTTPConnection) -> Iterator[None]:
    """End the connection if headers come byte by byte: none of these is late by itself."""
    sock = cast("socket.socket", connection.sock)
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):  # the other side has ended it
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # also below TLS

    timer = threading.Timer(HEADER_SECONDS + cast("float", connection.timeout), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if is_late.is_set():  # what came until then would pass for all headers
        raise TimeoutError("headers come too slowly")


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


POOLS = {"http": _PlainPool, "https": _TlsPool}


class _RetryAdapter(HTTPAdapter):
    """Retries requests, and checks certificates against the name that access gives."""

    def __init__(self, server_name: str | None, retry: Retry) -> None:
        self._tls_names: dict[str, object] = {}
        if server_name:
            self._tls_names = {"server_hostname": server_name, "assert_hostname": server_name}
        super().__init__(max_retries=retry)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **options: object
    ) -> None:
        super().init_poolmanager(connections, maxsize, block, **options, **self._tls_names)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, proxy: str, **options: object) -> PoolManager:
        manager: PoolManager = super().proxy_manager_for(proxy, **options, **self._tls_names)
        manager.pool_classes_by_scheme = POOLS
        return manager


def _open_session(access: ApiAccess) -> requests.Session:
    session = DirectSession()
    # Otherwise a netrc would replace the token, and REQUESTS_CA_BUNDLE would replace `verify`.
    session.trust_env = False
    session.verify = access.verify
    session.cert = access.certificate
    if access.proxy:
        session.proxies = {"http": access.proxy, "https": access.proxy}
    if access.verify is False:
        disable_warnings(InsecureRequestWarning)  # the user turned verification off

    # POST is retried too: objects have names of ours, so a second POST of one is a conflict.
    retry = ClosingRetry(
        MAX_RETRIES,
        backoff_factor=0.5,
        status_forcelist=TRANSIENT_STATUSES,
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=False,  # which may demand an hour
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, _RetryAdapter(access.server_name, retry))
    return session
