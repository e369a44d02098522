"""What the hub's client takes of answers: imported only where something is asked of a hub.

A hub, or a gateway before it, may never end an answer, send a byte now and then, lead a listing to
itself, ask for a wait of hours, name files that are not in the cache, or lead to what is only for
this machine. A file that it would write there may be one that is run.
"""

import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from httpx2 import URL, Client, InvalidURL, Request, Response, SyncByteStream
from huggingface_hub import _tree_cache, constants, set_client_factory
from huggingface_hub.utils import _http

from imagekiln.steps.errors import BadInput, TryAgain, cut_name
from imagekiln.steps.storage.web_client import (
    LOWEST_BYTES_PER_SECOND,
    RefusedAddress,
    SlowServer,
    is_metadata_service,
)

if TYPE_CHECKING:
    from huggingface_hub._tree_cache import TreeCacheEntry

HUB = "https://huggingface.co"
FIRST_WAIT_SECONDS = 5.0
MAX_SILENCE_SECONDS = 120.0
MAX_WAIT_SECONDS = 330.0  # the hub counts requests in windows of five minutes
PACE_SECONDS = 120.0  # of waiting, between two looks at how much has come
MAX_LISTING_BYTES = 2**27  # the hub advises against 100,000 files, of which each takes some 350
MAX_CUTS = 400  # of a file
RESTART_CUTS = 100  # that one counts as after which the file begins anew
PART_BYTES = 2**16  # that a part of a listing counts at least: it has a thousand files
SHA256_NAME = re.compile(r"[0-9a-f]{64}")
# Of what the client resumes: it goes on to the end. What is read in pieces names their ends.
RESUMED_RANGE = re.compile(r"bytes=\d+-")
# What the hub says of a repository: no file is there, whatever leads there.
REPOSITORY_API = re.compile(r"/api/(?:models|datasets)/")


def limit_client() -> None:
    """Limit what the hub's client waits for and takes, also where it writes.

    Nor does it tell the hub what runs here: it would ask for a list of programs first, and keep an
    answer that is none, with which each request of a day fails. hf_xet, which makes requests of its
    own to the storage that a hub names, has none of these limits, and is used with one hub alone.
    """
    constants.HF_HUB_DISABLE_TELEMETRY = True
    if constants.ENDPOINT != HUB:
        constants.HF_HUB_DISABLE_XET = True
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # hf_xet reads these itself
    os.environ.setdefault("HF_XET_CLIENT_READ_TIMEOUT", f"{MAX_SILENCE_SECONDS:.0f}s")
    _limit_requests()


@cache
def _limit_requests() -> None:
    """Limit all requests that the client makes by itself.

    It has no limit for most, and none for what a busy server asks. The client's factory is private,
    and needed: one that was set before, as for a proxy, stays.
    """
    _keep_listings_in_cache()
    create = _http._GLOBAL_CLIENT_FACTORY

    def create_with_limits() -> Client:
        client = create()
        hooks = client.event_hooks
        limits = (_limit_wait, _ListingLimit(), _ResumeLimit())
        checks = (_require_names_in_cache, _require_end, *limits)
        client.event_hooks = {
            "request": [*hooks["request"], _limit_silence, _refuse_metadata_services],
            "response": [*hooks["response"], *checks],
        }
        return client

    set_client_factory(create_with_limits)


def seconds_to_wait(busy: Response, attempt: int) -> float:
    """As long as a busy hub asks for, or ever longer, and up to half of that more by chance."""
    asked = _retry_after_seconds(busy)
    seconds = FIRST_WAIT_SECONDS * 2 ** (attempt - 1) if asked is None else asked
    spread = random.uniform(1, 1.5)  # noqa: S311  # no secret: it only keeps pods apart
    return min(max(seconds, 1.0), MAX_WAIT_SECONDS) * spread


def _retry_after_seconds(response: Response) -> float | None:
    """How long an answer asks to wait, by either header in use, whichever is longer."""
    asked = [
        re.fullmatch(r"\s*(\d+)\s*", response.headers.get("retry-after", "")),
        re.search(r"\bt=(\d+)", response.headers.get("ratelimit", "")),
    ]
    return max((float(match[1]) for match in asked if match), default=None)


def _limit_silence(request: Request) -> None:
    """Set the limits that a request lacks: it overrides the client's own by none."""
    limits = request.extensions["timeout"]
    request.extensions["timeout"] = {
        name: MAX_SILENCE_SECONDS if seconds is None else seconds
        for name, seconds in limits.items()
    }


def _refuse_metadata_services(request: Request) -> None:
    """Have a request fail where its name or a redirect leads to a service for this machine."""

    def look(event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            connection = info["return_value"]
            if is_metadata_service(connection.get_extra_info("server_addr")[0]):
                connection.close()
                raise RefusedAddress

    request.extensions["trace"] = look


def _limit_wait(response: Response) -> None:
    """Let an answer ask for no longer wait than the hub's own limit of requests ever needs."""
    asked = _retry_after_seconds(response)
    if asked is not None and asked > MAX_WAIT_SECONDS:
        response.headers.pop("ratelimit", None)
        response.headers["retry-after"] = f"{MAX_WAIT_SECONDS:.0f}"


def _require_names_in_cache(response: Response) -> None:
    """Raise BadInput where the hub calls a file or a commit something that is not in the cache.

    The client takes names of the answers to HEAD alone.
    """
    headers = response.headers
    content = (headers.get("x-linked-etag") or headers.get("etag") or "").lstrip("W/").strip('"')
    for name in (content, headers.get("x-repo-commit", "")):
        if response.request.method == "HEAD" and _leads_out(name):
            raise BadInput(
                f"{response.url.host}: calls a file {cut_name(name)}, which is not in the cache. "
                "Trust no such hub: correct HF_ENDPOINT."
            )


def _leads_out(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/")


def _keep_listings_in_cache() -> None:
    """Let the client name files only by hashes where it goes by a listing in place of headers.

    It drops listings that are not valid, and then asks for each file. That is private.
    """
    is_valid = _tree_cache.is_valid_tree_entries

    def are_hashes(entries: "dict[str, TreeCacheEntry]") -> bool:
        names = (entry.lfs_sha256 for entry in entries.values())
        return is_valid(entries) and all(
            name is None or SHA256_NAME.fullmatch(str(name)) for name in names
        )

    _tree_cache.is_valid_tree_entries = are_hashes


class _PacedStream(SyncByteStream):
    """A stream that fails with SlowServer where less comes than through a modem."""

    def __init__(self, stream: SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        pieces = iter(self._stream)
        waited, came = 0.0, 0
        while True:
            started = time.monotonic()
            piece = next(pieces, None)
            waited += time.monotonic() - started
            if piece is None:
                return
            came += len(piece)
            if waited > PACE_SECONDS:
                if came < LOWEST_BYTES_PER_SECOND * waited:
                    raise SlowServer
                waited, came = 0.0, 0
            yield piece

    def close(self) -> None:
        self._stream.close()


def _require_end(response: Response) -> None:
    """Watch how fast an answer comes. Raises TryAgain where it is followed by itself."""
    if isinstance(response.stream, SyncByteStream):
        response.stream = _PacedStream(response.stream)
    following = response.links.get("next", {}).get("url")
    if following == str(response.request.url):
        raise TryAgain(
            f"{response.url.host}: the hub gives the same part of a list again and again. Run "
            "again, or without the proxy in between."
        )


@dataclass(slots=True)
class _Listing:
    """How much has come of a listing of files, over all its parts."""

    came: int = 0


class _BoundedStream(SyncByteStream):
    """What an answer says, uncompressed, of a listing that fails with BadInput if it is too long.

    Compressed, it may grow a thousand times.
    """

    def __init__(self, response: Response, listing: _Listing) -> None:
        self._host = response.url.host
        self._answer = Response(200, headers=response.headers, stream=response.stream)
        self._listing = listing

    def __iter__(self) -> Iterator[bytes]:
        self._listing.came += PART_BYTES
        for piece in self._answer.iter_bytes():
            self._listing.came += len(piece)
            if self._listing.came > MAX_LISTING_BYTES:
                raise BadInput(
                    f"{self._host}: the hub sends more than {MAX_LISTING_BYTES >> 20} MiB for a "
                    "list of files or a short answer. Trust no such hub: correct HF_ENDPOINT."
                )
            yield piece

    def close(self) -> None:
        self._answer.close()


class _ListingLimit:
    """Bounds what the client reads into memory: all parts of a listing, and all but files."""

    def __init__(self) -> None:
        # What is at addresses that answers have led to, by their hashes: a listing goes on there,
        # or it is a file.
        self._known: dict[int, _Listing | None] = {}

    def __call__(self, response: Response) -> None:
        request = response.request
        listing = _Listing() if _is_of_listing(request) else None
        listing = self._known.get(_hash(request.url), listing)
        self._follow(response, listing)
        if listing is None and response.is_success:
            return
        response.stream = _BoundedStream(response, listing or _Listing())
        response.headers.pop("content-encoding", None)

    def _follow(self, response: Response, listing: _Listing | None) -> None:
        addresses = [response.links.get("next", {}).get("url")]
        if response.has_redirect_location:
            addresses.append(response.headers["location"])
        followers = [address for address in addresses if address]
        for address in followers:
            with suppress(InvalidURL):  # which the client tells
                url = response.url.join(address)
                if listing is not None or not REPOSITORY_API.search(url.path):
                    self._known[_hash(url)] = listing
        if listing is not None and not followers and response.is_success:
            for key, known in list(self._known.items()):  # other threads add to it
                if known is listing:
                    self._known.pop(key, None)


def _hash(url: URL) -> int:
    """What an address is known by: it may be long, and the client asks for each file twice."""
    return hash(str(url))


def _is_of_listing(request: Request) -> bool:
    """Whether the client reads an answer as a whole, unless it is where an answer has led to."""
    path = request.url.path
    is_whole = request.method not in ("GET", "HEAD") or REPOSITORY_API.search(path) is not None
    return is_whole or ("/api/" in path and "/resolve/" not in path)


class _ResumeLimit:
    """Ends what the client would resume for ever, where a server cuts off each answer.

    The client counts no attempt in which something came. Each is within the one before, so that it
    would end where Python has no more frames.
    """

    def __init__(self) -> None:
        self._cuts = Counter[str]()

    def __call__(self, response: Response) -> None:
        asked = response.request.headers.get("range", "")
        if RESUMED_RANGE.fullmatch(asked) is None:
            return
        path = response.url.path
        is_resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
        self._cuts[path] += 1 if is_resumed else RESTART_CUTS
        if self._cuts[path] > MAX_CUTS:
            self._cuts.pop(path)  # for the next command of this process
            raise TryAgain(
                f"{response.url.host}: a file is cut off again and again. Run again, or without "
                "the proxy in between."
            )
