"""The errors that refusals of a cluster's API stand for, with a sentence and an exit code."""

import json

from urllib3.exceptions import SSLError

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.storage.failures import error_reason
from imagekiln.workflows.objects import get_texts

TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
GONE = 410  # of a list in pages that has taken too long
PLAINTEXT_ERROR = "WRONG_VERSION_NUMBER"  # OpenSSL's name for an answer that is not TLS
# Kubernetes' message for a kind that no CustomResourceDefinition defines.
UNKNOWN_KIND_MESSAGE = "the server could not find the requested resource"
CONFLICT_MESSAGE = "the object has been modified"
NO_NAMESPACE = 'namespaces "'  # and then: NAME" not found
ANONYMOUS_USER = '"system:anonymous"'


class AlreadyExists(BadInput):
    """An object of this name exists."""


class LoginRefused(BadInput):
    """The API does not know the user."""


class Forbidden(BadInput):
    """The user is authenticated and lacks the right."""


def response_error(status: int, reason: str | None, body: bytes, url: str) -> KilnError:
    """Return the error that a response with a failure status stands for."""
    message = _response_message(body) or reason or f"status {status}"

    if status == 401 or (status == 403 and ANONYMOUS_USER in message):
        return LoginRefused(f"{url}: did not accept the login ({message}). Log in again.")
    if status == 403:
        return Forbidden(f"{url}: access denied ({message}). Ask for the Role imagekiln-submitter.")
    if status == 404:
        return Missing(f"{url}: {message}.{_missing_advice(message)}")
    if CONFLICT_MESSAGE in message:  # Argo's server may have 500 for it
        return TryAgain(f"{url}: {message}. Run again.")
    if status == 409:
        return AlreadyExists(f"{url}: {message}.")
    if status in (GONE, *TRANSIENT_STATUSES):
        return TryAgain(f"{url}: failed ({status}: {message}). Run again.")
    if 300 <= status < 400:
        return BadInput(
            f"{url}: redirects elsewhere. Write the address of the API itself; if that is a login "
            "page, log in."
        )
    return BadInput(f"{url}: rejected the request ({message}).")


def _missing_advice(message: str) -> str:
    if message == UNKNOWN_KIND_MESSAGE:
        return " Check that Argo is installed: `imagekiln doctor JOB`."
    if message.startswith(NO_NAMESPACE):
        return (
            " Set it up with `imagekiln manifests cluster` and `kubectl apply -k`, as "
            "docs/cluster.md says, or set cluster.namespace."
        )
    return ""


def connection_error(error: Exception, url: str) -> KilnError:
    """Return the error that a request without a response stands for."""
    cause = root_cause_message(error)
    if not isinstance(getattr(error, "reason", error), SSLError):
        return TryAgain(
            f"{url}: did not answer ({cause}). Check the address and the network, then run again."
        )
    if PLAINTEXT_ERROR in cause:
        return BadInput(f"{url}: does not use TLS. Write http://, or set ARGO_SECURE=false.")
    return BadInput(
        f"{url}: TLS failed ({cause}). For a certificate that is not trusted, set "
        "REQUESTS_CA_BUNDLE to the file of its authority; ARGO_INSECURE_SKIP_VERIFY=true turns "
        "the check of an Argo server off. For your own certificate, log in again."
    )


def root_cause_message(error: Exception) -> str:
    """Return the message of the innermost cause, which explains a connection error."""
    cause: BaseException = error
    while True:
        causes = (getattr(cause, "reason", None), *getattr(cause, "args", ()))
        inner = next((each for each in causes if isinstance(each, Exception)), None)
        if inner is None:
            return error_reason(cause)
        cause = inner


def _response_message(body: bytes) -> str:
    """Return the `message` of an error, as Kubernetes and Argo write it; else a plain text."""
    text = body[:5000].decode(errors="replace")
    try:
        text = get_texts(json.loads(body)).get("message", "")
    except ValueError:
        if "<" in text:  # a page
            return ""
    return " ".join(text[:500].split()).rstrip(".")
