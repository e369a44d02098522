"""HTTP requests to a cluster's API, with timeouts, retries and readable errors.

The Kubernetes client provides the connection pool, with TLS, proxy and login. Its methods are not
used, since they set no timeout and cannot reach an Argo server.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import urlencode

from urllib3 import BaseHTTPResponse, HTTPResponse, PoolManager, Retry, Timeout, disable_warnings
from urllib3.exceptions import HTTPError, InsecureRequestWarning, SSLError

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.storage.failures import error_reason
from imagekiln.workflows.objects import Json, get_mapping, get_mappings, get_texts

if TYPE_CHECKING:
    from kubernetes.client import Configuration

CONNECT_TIMEOUT = 5
READ_TIMEOUT = 30
LOG_TIMEOUT = 300  # between two chunks of an existing log
FOLLOW_TIMEOUT = 3600  # between two chunks of a followed log, which may be silent
MAX_RETRIES = 4  # of one HTTP request; pods are retried by templates/pod_retries.py
URL_CREDENTIALS = re.compile(r"//[^/@]*@")  # stripped from URLs in messages
JSON_TYPE = "application/json"
RETRIED_STATUSES = (408, 429, 500, 502, 503, 504)
TRANSIENT_STATUSES = (410, *RETRIED_STATUSES)  # 410: a paged list has expired
PLAINTEXT_ERROR = "WRONG_VERSION_NUMBER"  # OpenSSL's name for a response without TLS
CONFLICT_MESSAGE = "the object has been modified"  # Argo's server may return 500 for it
ANONYMOUS_USER = '"system:anonymous"'
# By the start of Kubernetes' message: the remedy for an object that does not exist.
MISSING_ADVICE = {
    "the server could not find the requested resource": (
        "Check that Argo is installed: `imagekiln doctor JOB`."
    ),
    'namespaces "': (
        "Set it up with `imagekiln manifests cluster` and `kubectl apply -k`, as docs/cluster.md "
        "says, or set cluster.namespace."
    ),
    'workflows.argoproj.io "': "`imagekiln workflows -n NAMESPACE` lists those of a namespace.",
    'cronworkflows.argoproj.io "': (
        "`imagekiln schedule list -n NAMESPACE` lists those of a namespace."
    ),
}


class AlreadyExists(BadInput):
    """An object with this name exists already."""


class LoginRefused(BadInput):
    """The API does not know the user."""


class Forbidden(BadInput):
    """The user is authenticated and lacks the right."""


class ApiConnection:
    """Connection to one API.

    Requests raise Missing, AlreadyExists, Forbidden, BadInput and TryAgain. `url` is the address
    for messages.
    """

    def __init__(self, configuration: "Configuration") -> None:
        """Create a connection pool, without sending a request."""
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
        """Send a request, and return its JSON response."""
        response = self._send(method, path, query, body, content_type=content_type)
        answer: object = None
        with suppress(ValueError):
            answer = json.loads(response.data)
        if not isinstance(answer, dict):
            raise BadInput(
                f"{self.url}: the answer is not a JSON object. "
                "Check that this is the address of the API."
            )
        return cast("Json", answer)

    def list_items(self, path: str, query: Mapping[str, str]) -> Iterator[Json]:
        """Yield the items of a Kubernetes list, requested in pages of the query's `limit`."""
        continuation: object = ""
        while continuation is not None:
            page = self.request("GET", path, {**query, "continue": str(continuation)})
            yield from get_mappings(page, "items")
            continuation = get_mapping(page, "metadata").get("continue") or None

    def stream_lines(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        max_silence: int = LOG_TIMEOUT,
    ) -> Iterator[str]:
        """Yield the lines of a response as they arrive, at most `max_silence` seconds apart."""
        with cast("HTTPResponse", self._send("GET", path, query, silence=max_silence)) as response:
            response.auto_close = False  # otherwise, a last line without a line feed is lost
            try:
                for line in TextIOWrapper(cast("BinaryIO", response), "utf-8", errors="replace"):
                    yield line.removesuffix("\n")
            except (HTTPError, OSError) as error:
                raise TryAgain(
                    f"{self.url}: the connection broke ({_root_cause(error)}). Run again."
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
        """Send a request, and return its successful response before the body is read."""
        try:
            # kubeconfig may renew a login that is about to expire.
            login = self._configuration.auth_settings().get("BearerToken")
            authorization = {"Authorization": login["value"]} if login else {}
            response = self._pool.request(
                method,
                f"{self._base}/{path}?{urlencode(query or {})}".rstrip("?"),
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": content_type, "Accept": "*/*", **authorization},
                timeout=Timeout(connect=CONNECT_TIMEOUT, read=silence),
                redirect=False,
                preload_content=False,
            )
            if not 200 <= response.status < 300:
                raise _response_error(response, self.url)
        except ValueError:  # the message may contain the password or the token
            raise BadInput(
                f"{self.url}: the address, its proxy's or the token is not valid. "
                "Write https://host:port, or set the token again."
            ) from None
        except (HTTPError, OSError) as error:
            raise _connection_error(error, self.url) from error
        return response


def _open_pool(configuration: "Configuration") -> PoolManager:
    from kubernetes.client.rest import RESTClientObject

    if not configuration.verify_ssl:
        disable_warnings(InsecureRequestWarning)  # the user turned verification off
    # POST is retried too: our object names are unique, so a second POST is a conflict.
    configuration.retries = Retry(
        MAX_RETRIES,
        backoff_factor=0.5,
        status_forcelist=RETRIED_STATUSES,
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=False,  # it may demand an hour
    )
    return cast("PoolManager", RESTClientObject(configuration).pool_manager)


def _response_error(response: BaseHTTPResponse, url: str) -> KilnError:
    """Convert a response with an error status to an error."""
    status = response.status
    message = response.reason or "no reason"
    with suppress(ValueError):  # Kubernetes and Argo explain themselves in JSON, proxies in HTML
        text = get_texts(json.loads(response.data)).get("message", "")
        message = " ".join(text[:500].split()).rstrip(".") or message
    if status == 401 or (status == 403 and ANONYMOUS_USER in message):
        return LoginRefused(f"{url}: did not accept the login ({message}). Log in again.")
    if status in TRANSIENT_STATUSES or CONFLICT_MESSAGE in message:
        return TryAgain(f"{url}: failed ({status}: {message}). Run again.")
    if status == 403:
        return Forbidden(f"{url}: access denied ({message}). Ask for the Role imagekiln-submitter.")
    if status == 404:
        advice = [advice for start, advice in MISSING_ADVICE.items() if message.startswith(start)]
        return Missing(" ".join([f"{url}: {message}.", *advice]))
    if status == 409:
        return AlreadyExists(f"{url}: {message}.")
    return BadInput(
        f"{url}: rejected the request ({status}: {message}). "
        "If this is not the API, write its own address."
    )


def _connection_error(error: Exception, url: str) -> KilnError:
    """Convert a failed request without a response to an error."""
    cause = _root_cause(error)
    if not isinstance(getattr(error, "reason", error), SSLError):
        return TryAgain(
            f"{url}: did not answer ({cause}). Check the address and the network, then run again."
        )
    if PLAINTEXT_ERROR in cause:
        return BadInput(f"{url}: does not use TLS. Write http:// before its address.")
    return BadInput(
        f"{url}: TLS failed ({cause}). For a certificate that is not trusted, set "
        "REQUESTS_CA_BUNDLE to the file of its authority; ARGO_INSECURE_SKIP_VERIFY=true turns "
        "the check of an Argo server off. For your own certificate, log in again."
    )


def _root_cause(error: BaseException) -> str:
    """Return the message of the innermost cause, which explains a connection error."""
    for cause in (getattr(error, "reason", None), *error.args):
        if isinstance(cause, Exception):
            return _root_cause(cause)
    return error_reason(error)
