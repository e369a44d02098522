"""What a refusal by a cluster's API means: an error with a sentence and an exit code."""

from urllib.parse import urljoin

import requests
from urllib3.exceptions import LocationParseError

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.runtime.sanitize import redact_uri
from imagekiln.steps.storage.failures import error_reason

TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
GONE = 410  # of a list in pages that has taken too long
PLAINTEXT_ERROR = "WRONG_VERSION_NUMBER"  # OpenSSL's name for an answer that is not TLS
# Its names of what is wrong with the client's certificate: a server's refusal, and another key.
CLIENT_CERTIFICATE_ERRORS = ("_ALERT_", "KEY_VALUES_MISMATCH")
TRUST_ADVICE = (
    "Set REQUESTS_CA_BUNDLE to the file of its certificate authority; "
    "for an Argo server, ARGO_INSECURE_SKIP_VERIFY=true turns the check off."
)
# What Kubernetes answers for a kind that no CustomResourceDefinition defines.
UNKNOWN_KIND_MESSAGE = "the server could not find the requested resource"
CONFLICT_MESSAGE = "the object has been modified"
NO_NAMESPACE = 'namespaces "'  # and then: NAME" not found
ANONYMOUS_USER = '"system:anonymous"'
ADDRESS_ERRORS = (
    LocationParseError,
    requests.exceptions.InvalidURL,  # also of a proxy
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)


class AlreadyExists(BadInput):
    """An object of this name exists."""


class Conflict(TryAgain):
    """Somebody else, such as Argo's controller, has written an object since it was read."""


class LoginRefused(BadInput):
    """The API does not know the user."""


class Forbidden(BadInput):
    """The user is authenticated and lacks the right."""


def redirect_error(response: requests.Response, url: str) -> BadInput:
    """The error that an answer stands for which sends the request elsewhere."""
    place = redact_uri(urljoin(response.url, response.headers["Location"]))
    return BadInput(
        f"{url}: redirects to {place}. Write the address of the API itself; if that "
        "is a login page, log in."
    )


def response_error(response: requests.Response, url: str) -> KilnError:
    """The error that a response with a failure status stands for."""
    status = response.status_code
    message = _response_message(response)

    if status == 401 or (status == 403 and ANONYMOUS_USER in message):
        return LoginRefused(f"{url}: did not accept the login ({message}). Log in again.")
    if status == 403:
        return Forbidden(f"{url}: access denied ({message}). Ask for the Role imagekiln-submitter.")
    if status == 404 and message == UNKNOWN_KIND_MESSAGE:
        return Missing(
            f"{url}: does not serve this kind of object. "
            "Check that Argo is installed: `imagekiln doctor JOB`."
        )
    if status == 404 and message.startswith(NO_NAMESPACE):
        return Missing(
            f"{url}: {message}. Set it up with `imagekiln manifests cluster` and "
            "`kubectl apply -k`, as docs/cluster.md says, or set cluster.namespace."
        )
    if status == 404:
        return Missing(f"{url}: {message}.")
    if status == 409 or CONFLICT_MESSAGE in message:  # Argo's server may have 500 for the latter
        return _conflict_error(message, url)
    if status in (GONE, *TRANSIENT_STATUSES):
        return TryAgain(f"{url}: failed ({status}: {message}). Run again.")
    return BadInput(f"{url}: rejected the request ({message}).")


def _conflict_error(message: str, url: str) -> KilnError:
    if CONFLICT_MESSAGE in message:
        return Conflict(f"{url}: {message}. Run again.")
    return AlreadyExists(f"{url}: {message}.")


def connection_error(error: Exception, url: str) -> KilnError:
    """The error that a request without a response stands for."""
    if type(error) is OSError:  # of requests, for a file of certificates that does not exist
        return BadInput(f"{url}: {error_reason(error)}. {TRUST_ADVICE}")
    if isinstance(error, requests.exceptions.SSLError):
        return _tls_error(error, url)
    if is_token_error(error):
        return BadInput(
            f"{url}: the token contains characters that no HTTP header may have. Set it again."
        )
    if isinstance(error, ADDRESS_ERRORS):  # its message may quote a part of a password
        return BadInput(
            f"{url}: is not a valid address, or its proxy's is not. Write https://host:port."
        )
    return TryAgain(
        f"{url}: did not answer ({root_cause_message(error)}). Check the address and the network, "
        "then run again."
    )


def is_token_error(error: Exception) -> bool:
    """Whether no header can have the token."""
    return isinstance(error, requests.exceptions.InvalidHeader | UnicodeError)


def root_cause_message(error: Exception) -> str:
    """The message of the innermost cause, which is the one that explains a connection error."""
    cause: BaseException = error
    while True:
        arguments = getattr(cause, "args", ())
        causes = (getattr(cause, "reason", None), *arguments)
        inner = next((each for each in causes if isinstance(each, Exception)), None)
        if inner is None:
            break
        cause = inner
    return error_reason(cause)  # without the connection, which urllib3 puts before the message


def _tls_error(error: requests.exceptions.SSLError, url: str) -> KilnError:
    cause = root_cause_message(error)
    if "EOF" in cause:
        return TryAgain(
            f"{url}: ended the connection before it answered ({cause}). Check the network, and "
            "that the client's certificate has not expired, then run again."
        )
    if PLAINTEXT_ERROR in cause:
        return BadInput(f"{url}: does not use TLS. Write http://, or set ARGO_SECURE=false.")
    if any(name in cause for name in CLIENT_CERTIFICATE_ERRORS):
        return BadInput(
            f"{url}: no connection is made with the client's certificate ({cause}). Log in again, "
            "or renew certificate and key in kubeconfig."
        )
    return BadInput(f"{url}: the server's certificate is not trusted ({cause}). {TRUST_ADVICE}")


def _response_message(response: requests.Response) -> str:
    """The `message` of an error's body, as Kubernetes and Argo write it; else the status line."""
    try:
        message = response.json()["message"]
    except (ValueError, LookupError, TypeError):
        is_html = "html" in response.headers.get("Content-Type", "")
        message = "" if is_html else response.text[:500].strip()
    message = message or response.reason or f"status {response.status_code}"
    return " ".join(str(message).split()).rstrip(".")
