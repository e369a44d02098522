"""HTTP to an API of the cluster's: with timeouts, a few tries, and failures as sentences."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import requests
from requests.adapters import HTTPAdapter
from urllib3 import disable_warnings
from urllib3.exceptions import InsecureRequestWarning
from urllib3.util.retry import Retry

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.failures import (
    TRANSIENT_STATUSES,
    response_error,
    root_cause_message,
    tls_error,
)
from imagekiln.workflows.objects import Json

CONNECT_TIMEOUT = 5
READ_TIMEOUT = 30
STREAM_TIMEOUT = 3600  # how long a log that is followed may say nothing
MAX_RETRIES = 4
ADDRESS_ERRORS = (
    requests.exceptions.InvalidURL,  # a proxy's too
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)
URL_CREDENTIALS = re.compile(r"//[^/@]*@")  # in a URL: no message shows it


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where an API is, and how it knows who asks. `token` is called for each request, since tokens expire.

    `verify` may be a file of authorities; `proxy` stands between, and `server_name` is what the certificate names where
    that is not the URL's host.
    """

    url: str
    token: Callable[[], str | None]
    verify: bool | str = True
    certificate: tuple[str, str] | None = None
    proxy: str | None = None
    server_name: str | None = None


class _RetryAdapter(HTTPAdapter):
    """Tries again; holds a certificate to the name that it is expected to have."""

    def __init__(self, server_name: str | None, retry: Retry) -> None:
        self._names = (
            {"server_hostname": server_name, "assert_hostname": server_name} if server_name else {}
        )
        super().__init__(max_retries=retry)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **more: object
    ) -> None:
        super().init_poolmanager(connections, maxsize, block, **more, **self._names)

    def proxy_manager_for(self, proxy: str, **more: object) -> object:
        return super().proxy_manager_for(proxy, **more, **self._names)


class ApiConnection:
    """A session with one API. Raises Missing, Taken, Denied, BadInput and TryAgain."""

    def __init__(self, access: ApiAccess) -> None:
        """Take note of the access; nothing is asked yet."""
        self._access, self._base = access, access.url.rstrip("/")
        self.url = URL_CREDENTIALS.sub("//", self._base)
        self._session = requests.Session()
        # A netrc would take the token's place, and REQUESTS_CA_BUNDLE that of `verify`: access has read what counts.
        self._session.trust_env = False
        self._session.proxies = (
            {"http": access.proxy, "https": access.proxy} if access.proxy else {}
        )
        self._session.verify = access.verify
        if access.verify is False:
            disable_warnings(InsecureRequestWarning)  # it was asked for
        self._session.cert = access.certificate
        # Names are ours, so that a second POST of the same object is found out: it may be tried again like any other.
        retry = Retry(
            MAX_RETRIES,
            backoff_factor=0.5,
            status_forcelist=TRANSIENT_STATUSES,
            allowed_methods=None,
            raise_on_status=False,
            respect_retry_after_header=False,  # which may ask for an hour
        )
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, _RetryAdapter(access.server_name, retry))

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        kind: str = "application/json",
        accept: str = "application/json",
    ) -> Json:
        """The answer to one request."""
        answer = self._send(
            method, path, query, body, {"Content-Type": kind, "Accept": accept}, stream=False
        )
        try:
            return cast("Json", answer.json())
        except ValueError as error:
            raise BadInput(
                f"{self.url}: answers with something that is not JSON. Is it the right address?"
            ) from error

    def list_items(
        self, path: str, query: Mapping[str, str], accept: str = "application/json"
    ) -> Iterator[Json]:
        """The items of a list of Kubernetes', asked for in pages of `query`'s limit."""
        asked = dict(query)
        while True:
            page = self.request("GET", path, asked, accept=accept)
            yield from (
                cast("list[Json] | None", page["items"]) or ()
            )  # null where custom resources are none
            following = cast("Mapping[str, str]", page["metadata"]).get("continue")
            if not following:
                return
            asked["continue"] = following

    def stream_lines(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[str]:
        """The lines of an answer, as they come."""
        with self._send("GET", path, query, None, {}, stream=True) as answer:
            try:
                for line in answer.iter_lines(chunk_size=1):
                    yield line.decode(errors="replace")
            except requests.RequestException as error:
                raise TryAgain(
                    f"{self.url}: broke off ({root_cause_message(error)}). Run again."
                ) from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        headers: dict[str, str],
        *,
        stream: bool,
    ) -> requests.Response:
        token = self._access.token()
        headers |= {"Authorization": token} if token else {}
        times = (CONNECT_TIMEOUT, STREAM_TIMEOUT if stream else READ_TIMEOUT)
        url = f"{self._base}/{path}"
        try:
            answer = self._session.request(
                method, url, params=query, json=body, headers=headers, timeout=times, stream=stream
            )
        except requests.exceptions.SSLError as error:
            raise tls_error(error, self.url) from error
        except (requests.exceptions.InvalidHeader, UnicodeError):
            # What was raised quotes the token.
            raise BadInput(
                f"{self.url}: the token has signs that no token has. Set it anew."
            ) from None
        except ADDRESS_ERRORS as error:
            raise BadInput(
                f"{self.url}: is no address ({root_cause_message(error)}). Write https://host:port."
            ) from error
        except requests.RequestException as error:
            raise TryAgain(
                f"{self.url}: does not answer ({root_cause_message(error)}). Check the network."
            ) from error
        if answer.ok:
            return answer
        with answer:
            raise response_error(answer, self.url)
