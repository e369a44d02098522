"""HTTP to a cluster's API: with timeouts, retries, and failures as sentences."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import requests
from requests.adapters import HTTPAdapter
from urllib3 import PoolManager, disable_warnings
from urllib3.exceptions import HTTPError, InsecureRequestWarning
from urllib3.util.retry import Retry

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.api import CHECK_ADDRESS
from imagekiln.workflows.client.failures import (
    TRANSIENT_STATUSES,
    connection_error,
    is_token_error,
    redirect_error,
    response_error,
    root_cause_message,
)
from imagekiln.workflows.objects import Json, get_mapping, get_mappings

CONNECT_TIMEOUT = 5
READ_TIMEOUT = 30
LOG_TIMEOUT = 300  # until the next piece of a log that is there
FOLLOW_TIMEOUT = 3600  # a log that is followed may stay silent for so long
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
    ) -> Json:
        """The JSON answer to one request."""
        headers = {"Content-Type": content_type, "Accept": JSON_TYPE}
        response = self._send(method, path, query, body, headers)
        try:
            answer = response.json()
        except ValueError as error:
            raise self._no_api("the answer is not JSON") from error
        if not isinstance(answer, dict):
            raise self._no_api("the answer is not a JSON object")
        return cast("Json", answer)

    def list_items(self, path: str, query: Mapping[str, str]) -> Iterator[Json]:
        """The items of a Kubernetes list, requested in pages of the query's `limit`."""
        page_query = dict(query)
        while True:
            page = self.request("GET", path, page_query)
            yield from get_mappings(page, "items")

            continuation = get_mapping(page, "metadata").get("continue")
            if not continuation:
                return
            page_query["continue"] = str(continuation)

    def stream_lines(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        max_silence: int = LOG_TIMEOUT,
    ) -> Iterator[str]:
        """The lines of an answer, as they arrive: in pieces at most `max_silence` seconds apart."""
        with self._send("GET", path, query, None, {}, max_silence, stream=True) as response:
            try:
                for line in response.iter_lines():
                    yield line.decode(errors="replace")
            except requests.RequestException as error:
                raise TryAgain(
                    f"{self.where}: the connection broke ({root_cause_message(error)}). Run again."
                ) from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        headers: Mapping[str, str],
        max_silence: int = READ_TIMEOUT,
        *,
        stream: bool = False,
    ) -> requests.Response:
        """Send one request, whose answer is accepted; with `stream`, it is yet to be read."""
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
                stream=stream,
                allow_redirects=False,  # most would become a GET, and may reach another service
            )
        except (OSError, HTTPError, UnicodeError) as error:
            # The cause of a token's error quotes the token.
            cause = None if is_token_error(error) else error
            raise connection_error(error, self.where) from cause

        if response.is_redirect:
            raise redirect_error(response, self.where)
        if not response.ok:
            raise response_error(response, self.where)
        return response

    def _no_api(self, problem: str) -> BadInput:
        return BadInput(f"{self.where}: {problem}. {CHECK_ADDRESS}")


class _ServerNameAdapter(HTTPAdapter):
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

    def proxy_manager_for(self, proxy: str, **options: object) -> PoolManager:
        manager: PoolManager = super().proxy_manager_for(proxy, **options, **self._tls_names)
        return manager


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
    retry = Retry(
        MAX_RETRIES,
        backoff_factor=0.5,
        status_forcelist=TRANSIENT_STATUSES,
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=False,  # which may demand an hour
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, _ServerNameAdapter(access.server_name, retry))
    return session
