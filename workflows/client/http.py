"""HTTP to a cluster's API: with timeouts, retries, and failures as sentences."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3 import disable_warnings
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import HTTPError, InsecureRequestWarning
from urllib3.response import BaseHTTPResponse
from urllib3.util.retry import Retry

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.failures import (
    TOKEN_ERRORS,
    TRANSIENT_STATUSES,
    connection_error,
    redirect_error,
    response_error,
    root_cause_message,
)
from imagekiln.workflows.objects import Json, get_mapping, get_mappings

CONNECT_TIMEOUT = 5
READ_TIMEOUT = 30
ANSWER_TIMEOUT = 300  # for the whole of an answer, which may come byte by byte
MAX_PAGES = 1000  # of a list
MAX_ANSWER_BYTES = 2**29  # of 200 objects, each of which is a megabyte or two
PIECE_BYTES = 2**16  # that are read at once, or what has arrived
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
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
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
            # An empty list of custom resources is null.
            yield from get_mappings(page, "items")

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
    ) -> Iterator[str]:
        """The lines of an answer, as they arrive, at most `max_silence` seconds apart."""
        with self._send("GET", path, query, None, {}, max_silence=max_silence) as response:
            for line in _split_lines(self._pieces(response)):
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
                allow_redirects=False,  # followed, most requests would become another: a GET
            )
        except (OSError, HTTPError, UnicodeError) as error:
            # The cause of a token's error quotes the token.
            cause = None if isinstance(error, TOKEN_ERRORS) else error
            raise connection_error(error, self.where) from cause

        if response.ok and not response.is_redirect:
            return response
        with response:
            if response.is_redirect:
                raise redirect_error(response, self.where)
            raise response_error(response, self._read(response), self.where)

    def _read(self, response: requests.Response) -> bytes:
        """The whole of an answer, which neither goes on for ever nor fills the memory."""
        deadline = time.monotonic() + ANSWER_TIMEOUT
        content = bytearray()
        for piece in self._pieces(response):
            content += piece
            if len(content) > MAX_ANSWER_BYTES:
                raise self._no_api(f"the answer has more than {MAX_ANSWER_BYTES >> 20} MiB")
            if time.monotonic() >= deadline:
                raise TryAgain(
                    f"{self.where}: the answer takes more than {ANSWER_TIMEOUT} s. Check the "
                    "network, then run again."
                )
        return bytes(content)

    def _pieces(self, response: requests.Response) -> Iterator[bytes]:
        """The bytes of an answer as they arrive."""
        try:
            while piece := response.raw.read1(PIECE_BYTES, decode_content=True):
                yield piece
        except HTTPError as error:
            raise TryAgain(
                f"{self.where}: the connection broke ({root_cause_message(error)}). Run again."
            ) from error

    def _no_api(self, problem: str) -> BadInput:
        return BadInput(f"{self.where}: {problem}. Check that this is the address of the API.")


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

    def proxy_manager_for(self, proxy: str, **options: object) -> object:
        return super().proxy_manager_for(proxy, **options, **self._tls_names)


def _open_session(access: ApiAccess) -> requests.Session:
    session = requests.Session()
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
