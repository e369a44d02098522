"""HTTP to an API of the cluster's: with timeouts, a few tries, and failures as sentences."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain

CONNECT_SECONDS = 5
ANSWER_SECONDS = 30
QUIET_SECONDS = 3600  # how long a log that is followed may say nothing
TRIES = 4
PASSING = (429, 500, 502, 503, 504)
Json = dict[str, object]


class Taken(BadInput):
    """An object of this name is there already."""


class Denied(BadInput):
    """Who asks is known, and may not."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where an API is, and how it knows who asks. `token` is called for each request, since tokens expire."""

    url: str
    token: Callable[[], str | None]
    verify: bool | str = True
    certificate: tuple[str, str] | None = None


class Connection:
    """A session with one API. Raises Missing, Taken, Denied, BadInput and TryAgain."""

    def __init__(self, access: Access) -> None:
        """Take note of the access; nothing is asked yet."""
        self.url = access.url.rstrip("/")
        self._access = access
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy or netrc of the environment gets between us and the cluster
        self._session.verify = access.verify
        self._session.cert = access.certificate
        # Names are ours, so that a second POST of the same object is found out: it may be tried again like any other.
        retry = Retry(TRIES, backoff_factor=0.5, status_forcelist=PASSING, allowed_methods=None, raise_on_status=False)
        for scheme in ("https://", "http://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        kind: str = "application/json",
        accept: str = "application/json",
    ) -> Json:
        """The answer to one request."""
        answer = self._send(method, path, query, body, {"Content-Type": kind, "Accept": accept}, stream=False)
        try:
            return cast("Json", answer.json())
        except ValueError as error:
            raise BadInput(f"{self.url}: answers with something that is not JSON. Is it the right address?") from error

    def pages(self, path: str, query: Mapping[str, str], accept: str = "application/json") -> Iterator[Json]:
        """The items of a list of Kubernetes', asked for in pages of `query`'s limit."""
        asked = dict(query)
        while True:
            page = self.ask("GET", path, asked, accept=accept)
            yield from cast("list[Json] | None", page["items"]) or ()  # null where custom resources are none
            following = cast("Mapping[str, str]", page["metadata"]).get("continue")
            if not following:
                return
            asked["continue"] = following

    def lines(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[str]:
        """The lines of an answer, as they come."""
        with self._send("GET", path, query, None, {}, stream=True) as answer:
            try:
                for line in answer.iter_lines(chunk_size=1):
                    yield line.decode(errors="replace")
            except requests.RequestException as error:
                raise TryAgain(f"{self.url}: broke off ({_brief(error)}). Run again.") from error

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
        times = (CONNECT_SECONDS, QUIET_SECONDS if stream else ANSWER_SECONDS)
        url = f"{self.url}/{path}"
        try:
            answer = self._session.request(
                method, url, params=query, json=body, headers=headers, timeout=times, stream=stream
            )
        except requests.exceptions.SSLError as error:
            raise BadInput(f"{self.url}: its certificate is not trusted ({_brief(error)}).") from error
        except requests.RequestException as error:
            raise TryAgain(f"{self.url}: does not answer ({_brief(error)}). Check the network.") from error
        if answer.ok:
            return answer
        with answer:
            raise _refusal(answer, self.url)


def _refusal(answer: requests.Response, url: str) -> KilnError:
    said = _said(answer)
    if answer.status_code == 401:
        return BadInput(f"{url}: does not know you ({said}). Log in again, or renew the token.")
    if answer.status_code == 403:
        return Denied(f"{url}: you may not do this ({said}). Ask for the role imagekiln-submitter.")
    if answer.status_code == 404:
        return Missing(f"{url}: {said}.")
    if answer.status_code == 409:
        return Taken(f"{url}: {said}.")
    if answer.status_code in PASSING:
        return TryAgain(f"{url}: is in trouble ({answer.status_code}: {said}). Run again.")
    return BadInput(f"{url}: refuses this ({said}).")


def _said(answer: requests.Response) -> str:
    """What an error's body says: Kubernetes and Argo both call it `message`."""
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:500].strip() or answer.reason
    return " ".join(str(message).split()).rstrip(".")


def _brief(error: Exception) -> str:
    """The last cause, which is the one that tells."""
    reason: object = error
    while inner := getattr(reason, "reason", None) or next(iter(getattr(reason, "args", ())), None):
        if not isinstance(inner, Exception):
            break
        reason = inner
    return str(reason).rpartition(">: ")[2].splitlines()[0][:200]
