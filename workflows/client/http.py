"""HTTP to a cluster's API, with time-outs, retries, and failures as sentences.

The Kubernetes client gives the connection pool, with TLS, proxy and login. Its own methods are not
used: they set no time-out, and reach no Argo server.
"""

import json
import re
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, HTTPResponse, PoolManager, Retry, Timeout, disable_warnings
from urllib3.exceptions import HTTPError, InsecureRequestWarning

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.failures import (
    TRANSIENT_STATUSES,
    connection_error,
    response_error,
    root_cause_message,
)
from imagekiln.workflows.objects import Json, get_mapping, get_mappings

if TYPE_CHECKING:
    from kubernetes.client import Configuration

CONNECT_TIMEOUT = 5
READ_TIMEOUT = 30
LOG_TIMEOUT = 300  # until the next piece of a log that is there
FOLLOW_TIMEOUT = 3600  # a log that is followed may stay silent for so long
MAX_RETRIES = 4  # of one HTTP request; pods are retried by templates/pod_retries.py
URL_CREDENTIALS = re.compile(r"//[^/@]*@")  # stripped from URLs in messages
JSON_TYPE = "application/json"


class ApiConnection:
    """A connection to one API.

    Requests raise Missing, AlreadyExists, Forbidden, BadInput and TryAgain. `url` is the address
    as messages have it.
    """

    def __init__(self, configuration: "Configuration") -> None:
        """Prepare a pool of connections; nothing is sent yet."""
        self._configuration = configuration
        self._base = configuration.host.rstrip("/")
        self._pool = _open_pool(configuration)
        self.url = URL_CREDENTIALS.sub("//", self._base)

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        *,
        content_type: str = JSON_TYPE,
    ) -> Json:
        """Return the JSON answer to one request."""
        response = self._send(method, path, query, body, content_type=content_type)
        try:
            answer: object = json.loads(response.data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise BadInput(
                f"{self.url}: the answer is not a JSON object. "
                "Check that this is the address of the API."
            )
        return cast("Json", answer)

    def list_items(self, path: str, query: Mapping[str, str]) -> Iterator[Json]:
        """Yield the items of a Kubernetes list, requested in pages of the query's `limit`."""
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
        """Yield the lines of an answer as they arrive, at most `max_silence` seconds apart."""
        with cast("HTTPResponse", self._send("GET", path, query, silence=max_silence)) as response:
            response.auto_close = False  # or the last line, without an end, is lost
            try:
                for line in TextIOWrapper(cast("BinaryIO", response), "utf-8", errors="replace"):
                    yield line.removesuffix("\n")
            except (HTTPError, OSError) as error:
                raise TryAgain(
                    f"{self.url}: the connection broke ({root_cause_message(error)}). Run again."
                ) from error

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None = None,
        *,
        content_type: str = JSON_TYPE,
        silence: int = READ_TIMEOUT,
    ) -> BaseHTTPResponse:
        """Send one request, whose answer is accepted and yet to be read."""
        try:
            response = self._pool.request(
                method,
                f"{self._base}/{path}?{urlencode(query or {})}".rstrip("?"),
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": content_type, "Accept": "*/*", **self._login()},
                timeout=Timeout(connect=CONNECT_TIMEOUT, read=silence),
                redirect=False,
                preload_content=False,
            )
            if not 200 <= response.status < 300:
                raise response_error(response.status, response.reason, response.data, self.url)
        except ValueError:  # its message may quote a password or the token
            raise BadInput(
                f"{self.url}: the address, its proxy's or the token is not valid. "
                "Write https://host:port, or set the token again."
            ) from None
        except (HTTPError, OSError) as error:
            raise connection_error(error, self.url) from error
        return response

    def _login(self) -> dict[str, str]:
        """Return the header of the login, which kubeconfig renews when it is about to expire."""
        login = self._configuration.auth_settings().get("BearerToken")
        return {"Authorization": login["value"]} if login else {}


def _open_pool(configuration: "Configuration") -> PoolManager:
    from kubernetes.client.rest import RESTClientObject

    if not configuration.verify_ssl:
        disable_warnings(InsecureRequestWarning)  # the user turned verification off
    # POST is retried too: objects have names of ours, so a second POST of one is a conflict.
    configuration.retries = Retry(
        MAX_RETRIES,
        backoff_factor=0.5,
        status_forcelist=TRANSIENT_STATUSES,
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=False,  # which may demand an hour
    )
    return cast("PoolManager", RESTClientObject(configuration).pool_manager)
