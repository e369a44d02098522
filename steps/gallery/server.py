"""HTTP server of a gallery, on the loopback interface unless the user chooses another host.

Pages of other origins cannot read from the server. Host headers must be addresses or the served
name, which prevents DNS rebinding, and response headers forbid cross-origin requests to browsers.
Request paths never reach storage. They identify an image in the index.
"""

import base64
import hashlib
import ipaddress
import json
import re
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from imagekiln.steps.errors import BadInput, Incomplete, KilnError, Missing, TryAgain, cut_name
from imagekiln.steps.gallery.gallery import Gallery, open_gallery
from imagekiln.steps.gallery.queries import Condition, PageQuery
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.signals import Stopped

IDLE_SECONDS = 60.0
INLINE_PATTERN = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
JSON_TYPE = "application/json"
IMAGE_PATH = re.compile(r"/(image|thumbnail|row)/([0-9]{1,18})/([0-9a-f]{32})")
# Images of a run never change.
IMAGE_CACHING = "private, max-age=3600"
PAGE_ADAPTER = TypeAdapter(PageQuery)
WHERE_ADAPTER = TypeAdapter(tuple[Condition, ...])
Options = Mapping[str, str]
STATUSES: dict[type[KilnError], HTTPStatus] = {
    Missing: HTTPStatus.NOT_FOUND,
    BadInput: HTTPStatus.BAD_REQUEST,
    Incomplete: HTTPStatus.SERVICE_UNAVAILABLE,
    TryAgain: HTTPStatus.SERVICE_UNAVAILABLE,
}
COMMON_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """Response to a request."""

    content: bytes
    content_type: str = JSON_TYPE
    status: HTTPStatus = HTTPStatus.OK
    caching: str = "no-store"


def load_page() -> tuple[bytes, str]:
    """Load the page, and its Content-Security-Policy, which allows only the page's own script."""
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    directives = [
        "default-src 'none'",
        f"script-src {_source_hashes(text, 'script')}",
        f"style-src {_source_hashes(text, 'style')}",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return text.encode(), "; ".join(directives)


def _source_hashes(text: str, tag: str) -> str:
    digests = (
        hashlib.sha256(content.encode()).digest()
        for name, content in INLINE_PATTERN.findall(text)
        if name == tag
    )
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def serve_gallery(uri: str, host: str, port: int, report: Callable[[str], None]) -> None:
    """Serve the gallery of a run or an output until a signal. `report` receives messages.

    Raises BadInput, Missing, TryAgain.
    """
    with open_gallery(uri) as gallery, GalleryServer(gallery, host, port) as server:
        state = gallery.state()
        try:
            report(
                f"{pluralize(state.images, 'image')} of {pluralize(len(state.runs), 'run')}: "
                f"{server.url} until Ctrl-C."
            )
            if not is_loopback(host):
                report(f"Everybody who reaches {host} can see all of them.")
            server.serve_forever()
        except Stopped:
            return


class GalleryServer(ThreadingHTTPServer):
    """HTTP server of one gallery."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, gallery: Gallery, host: str, port: int) -> None:
        """Listen on a host and port. Raises BadInput if that is not possible."""
        self.gallery = gallery
        self.host = host
        self.page, self.policy = load_page()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), GalleryRequest)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput(
                f"cannot listen on {host}, port {port} ({reason}). "
                "Choose another --port, or an address of this machine as --host."
            ) from error

    @property
    def url(self) -> str:
        """URL of the page."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # as there
        """Ignore connections that the browser closed, and print tracebacks of other errors."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class GalleryRequest(BaseHTTPRequestHandler):
    """Request handler of one connection."""

    server: GalleryServer
    protocol_version = "HTTP/1.1"
    server_version = "imagekiln"
    sys_version = ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:  # as http.server calls it
        """Respond to a GET or HEAD request."""
        self._send(self._reply())

    do_HEAD = do_GET  # noqa: N815  # likewise

    def log_message(self, *_: object) -> None:
        """Do not log requests."""

    def _reply(self) -> Reply:
        if not is_own_host(self.headers.get("Host", ""), self.server.host):
            sentence = "This gallery has no such name. Open it at its address."
            return _refuse(sentence, HTTPStatus.FORBIDDEN)
        path, _, query = self.path.partition("?")
        options = {name: values[-1] for name, values in parse_qs(query).items()}
        if path == "/":
            return Reply(self.server.page, "text/html; charset=utf-8")
        try:
            return _answer(self.server.gallery, path, options)
        except ValidationError as error:
            return _refuse(_describe(error), HTTPStatus.BAD_REQUEST)
        except KilnError as error:
            return _refuse(str(error), _status_of(error))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        headers = {
            **COMMON_HEADERS,
            "Content-Type": reply.content_type,
            "Content-Length": str(len(reply.content)),
            "Content-Security-Policy": self.server.policy,
            "Cache-Control": reply.caching,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.content)


def is_own_host(header: str, host: str) -> bool:
    """Return whether a Host header is an IP address, localhost or the served host name.

    Any IP address is accepted, such as a tunnel's, since DNS rebinding needs a name.
    """
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return False
    return name in ("localhost", host.lower()) or _is_address(name)


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable only from this machine."""
    if not _is_address(host):
        return host == "localhost"
    return ipaddress.ip_address(host).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refuse(sentence: str, status: HTTPStatus) -> Reply:
    return Reply(_to_json({"error": sentence}), status=status)


def _answer(gallery: Gallery, path: str, options: Options) -> Reply:
    match path:
        case "/state":
            return Reply(_to_json(gallery.state()))
        case "/images":
            query = PAGE_ADAPTER.validate_python({**options, "where": _where(options)})
            return Reply(_to_json(gallery.page(query)))
        case "/count":
            return Reply(_to_json(gallery.count(_where(options))))
        case "/trends":
            return Reply(_to_json(gallery.trends(options.get("column"))))
        case _:
            return _answer_image(gallery, path)


def _answer_image(gallery: Gallery, path: str) -> Reply:
    match = IMAGE_PATH.fullmatch(path)
    if match is None:
        raise Missing(f"{cut_name(path)}: there is nothing here. Open the first page.")
    noun, digits, image_id = match.groups()
    number = int(digits)
    if noun == "row":
        return Reply(_to_json(gallery.details(number, image_id)))
    read = gallery.thumbnail if noun == "thumbnail" else gallery.file
    file = read(number, image_id)
    return Reply(file.content, file.media_type, caching=IMAGE_CACHING)


def _where(options: Options) -> tuple[Condition, ...]:
    content = options.get("where", "[]")
    return WHERE_ADAPTER.validate_json(content)


def _status_of(error: KilnError) -> HTTPStatus:
    for kind, status in STATUSES.items():
        if isinstance(error, kind):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def _describe(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    problem = first["msg"]
    return f"{cut_name(place) or 'where'}: {problem}. Correct the query."


def _to_json(value: object) -> bytes:
    # Escape all non-ASCII characters, since lone surrogates in user strings cannot be encoded. JSON
    # has no infinity and no NaN.
    jsonable = to_jsonable_python(value, inf_nan_mode="null")
    return json.dumps(jsonable, allow_nan=False).encode()
