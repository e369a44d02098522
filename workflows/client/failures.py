"""What an API of the cluster's refuses, or a connection to it, as a sentence and an exit code."""

import requests

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, first_line

TRANSIENT_STATUSES = (429, 500, 502, 503, 504)
PLAINTEXT_ERROR = "WRONG_VERSION_NUMBER"  # what OpenSSL says of an answer that is not encrypted
TRUST_ADVICE = "Name its authority's file in REQUESTS_CA_BUNDLE; for Argo's server, ARGO_INSECURE_SKIP_VERIFY=true asks no more."
UNKNOWN_KIND_MESSAGE = "the server could not find the requested resource"  # what Kubernetes says of a kind that it does not know


class AlreadyExists(BadInput):
    """An object of this name is there already."""


class Forbidden(BadInput):
    """Who asks is known, and may not."""


def response_error(answer: requests.Response, url: str) -> KilnError:
    """What an answer that is no success means."""
    said = _response_message(answer)
    if answer.status_code == 401 or (answer.status_code == 403 and '"system:anonymous"' in said):
        return BadInput(f"{url}: does not know you ({said}). Log in again, or renew the token.")
    if answer.status_code == 403:
        return Forbidden(
            f"{url}: you may not do this ({said}). Ask for the role imagekiln-submitter."
        )
    if answer.status_code == 404 and said == UNKNOWN_KIND_MESSAGE:
        return Missing(
            f"{url}: does not know this kind of object. Is Argo installed there? `imagekiln doctor JOB` says."
        )
    if answer.status_code == 404:
        return Missing(f"{url}: {said}.")
    if answer.status_code == 409:
        return AlreadyExists(f"{url}: {said}.")
    if answer.status_code in TRANSIENT_STATUSES:
        return TryAgain(f"{url}: is in trouble ({answer.status_code}: {said}). Run again.")
    return BadInput(f"{url}: refuses this ({said}).")


def tls_error(error: requests.exceptions.SSLError, url: str) -> BadInput:
    """What it means that no encrypted connection came about."""
    said = root_cause_message(error)
    if PLAINTEXT_ERROR in said:
        return BadInput(f"{url}: speaks no TLS. Write http://, or set ARGO_SECURE=false.")
    return BadInput(f"{url}: its certificate is not trusted ({said}). {TRUST_ADVICE}")


def _response_message(answer: requests.Response) -> str:
    """What an error's body says: Kubernetes and Argo both call it `message`."""
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError, TypeError):
        page = "html" in answer.headers.get("Content-Type", "")
        message = "" if page else answer.text[:500].strip()
    message = message or answer.reason or f"status {answer.status_code}"
    return " ".join(str(message).split()).rstrip(".")


def root_cause_message(error: Exception) -> str:
    """The last cause, which is the one that tells."""
    reason: object = error
    while inner := getattr(reason, "reason", None) or next(iter(getattr(reason, "args", ())), None):
        if not isinstance(inner, Exception):
            break
        reason = inner
    return first_line(str(reason).rpartition(">: ")[2]) or type(reason).__name__
