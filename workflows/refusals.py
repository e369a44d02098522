"""What an API of the cluster's refuses, or a connection to it, as a sentence and an exit code."""

import requests

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, first_line

PASSING = (429, 500, 502, 503, 504)
PLAIN = "WRONG_VERSION_NUMBER"  # what OpenSSL says of an answer that is not encrypted
TRUST = (
    "Name its authority's file in REQUESTS_CA_BUNDLE; for Argo's server, ARGO_INSECURE_SKIP_VERIFY=true asks no more."
)
NOT_SERVED = "the server could not find the requested resource"  # what Kubernetes says of a kind that it does not know


class Taken(BadInput):
    """An object of this name is there already."""


class Denied(BadInput):
    """Who asks is known, and may not."""


def refusal(answer: requests.Response, url: str) -> KilnError:
    """What an answer that is no success means."""
    said = _said(answer)
    if answer.status_code == 401 or (answer.status_code == 403 and '"system:anonymous"' in said):
        return BadInput(f"{url}: does not know you ({said}). Log in again, or renew the token.")
    if answer.status_code == 403:
        return Denied(f"{url}: you may not do this ({said}). Ask for the role imagekiln-submitter.")
    if answer.status_code == 404 and said == NOT_SERVED:
        return Missing(
            f"{url}: does not know this kind of object. Is Argo installed there? `imagekiln doctor JOB` says."
        )
    if answer.status_code == 404:
        return Missing(f"{url}: {said}.")
    if answer.status_code == 409:
        return Taken(f"{url}: {said}.")
    if answer.status_code in PASSING:
        return TryAgain(f"{url}: is in trouble ({answer.status_code}: {said}). Run again.")
    return BadInput(f"{url}: refuses this ({said}).")


def untrusted(error: requests.exceptions.SSLError, url: str) -> BadInput:
    """What it means that no encrypted connection came about."""
    said = brief(error)
    if PLAIN in said:
        return BadInput(f"{url}: speaks no TLS. Write http://, or set ARGO_SECURE=false.")
    return BadInput(f"{url}: its certificate is not trusted ({said}). {TRUST}")


def _said(answer: requests.Response) -> str:
    """What an error's body says: Kubernetes and Argo both call it `message`."""
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError, TypeError):
        page = "html" in answer.headers.get("Content-Type", "")
        message = "" if page else answer.text[:500].strip()
    message = message or answer.reason or f"status {answer.status_code}"
    return " ".join(str(message).split()).rstrip(".")


def brief(error: Exception) -> str:
    """The last cause, which is the one that tells."""
    reason: object = error
    while inner := getattr(reason, "reason", None) or next(iter(getattr(reason, "args", ())), None):
        if not isinstance(inner, Exception):
            break
        reason = inner
    return first_line(str(reason).rpartition(">: ")[2]) or type(reason).__name__
