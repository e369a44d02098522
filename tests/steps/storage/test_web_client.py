"""Which addresses are read over HTTP, whatever name or redirect leads to them."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from imagekiln.steps.errors import BadInput, KilnError, Missing, StorageRefused, TryAgain
from imagekiln.steps.plan.source_files import gather_sources
from imagekiln.steps.storage import web_client, web_response
from imagekiln.steps.storage.filesystem import open_filesystem
from imagekiln.steps.storage.uri import read_text
from imagekiln.steps.storage.web_client import is_own_address, is_private_service
from tests.servers import running


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.23",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:7a9:fe:a9fe::",
        "64:ff9b:1:7:a9:fea9:fe00::",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
    ],
)
def test_metadata_services_are_nobodys(address: str) -> None:
    assert is_private_service(address)


@pytest.mark.parametrize(
    "address", ["10.0.0.7", "192.168.1.1", "8.8.8.8", "2600::1", "fd00::1", "64:ff9b:1::a00:7"]
)
def test_servers_of_a_network_are_read(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert not is_private_service(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"])  # noqa: S104
def test_a_pod_does_not_read_from_itself(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert not is_private_service(address)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert is_private_service(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1", "0.0.0.0"])  # noqa: S104
def test_own_address_is_recognized(address: str) -> None:
    assert is_own_address(ip_address(address))


def test_pod_does_not_read_from_itself_by_the_address_that_others_have_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
    monkeypatch.setattr(socket.socket, "getsockname", lambda _: ("10.0.0.7", 40000))
    assert is_private_service("10.0.0.7")
    assert not is_private_service("10.0.0.8")


class _Server(BaseHTTPRequestHandler):
    """Gives a text, or sends on to what the query names."""

    def do_GET(self) -> None:
        _, _, place = self.path.partition("?to=")
        self.send_response(302 if place else 200)
        self.send_header("Location" if place else "Content-Type", unquote(place) or "text/plain")
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"name: a")

    do_HEAD = do_GET  # noqa: N815  # as the library names it

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of a server on this machine."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _Server)) as url:
        yield url


@pytest.mark.parametrize(
    "place",
    [
        "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
        "http://[fd00:ec2::254]/latest/api/token",
        "http://[::ffff:a9fe:a9fe]/",
    ],
)
def test_no_name_and_no_redirect_leads_to_a_metadata_service(server: str, place: str) -> None:
    assert read_text(f"{server}/job.yaml") == "name: a"
    message = "leads to an address of this machine or of its cloud's services, which is not for"
    with pytest.raises(BadInput, match=message):
        read_text(f"{server}/job.yaml?to={quote(place, safe='')}")
    with pytest.raises(BadInput):
        read_text(f"{place}job.yaml")


def test_name_of_this_machine_is_refused_in_a_pod(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.replace("127.0.0.1", "localhost")
    assert read_text(f"{url}/job.yaml") == "name: a"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with pytest.raises(BadInput, match="leads to an address of this machine"):
        read_text(f"{url}/other.yaml?x")


def test_a_name_is_judged_by_the_address_that_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def lead_astray(host: object, *rest: object, **options: object) -> object:
        place = "169.254.169.254" if host == "prompts.example" else host
        return resolve(place, *rest, **options)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(socket, "getaddrinfo", lead_astray)
    with pytest.raises(BadInput, match="leads to an address of this machine or of its cloud's"):
        read_text("http://prompts.example/job.yaml")


def test_server_that_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(web_client, "SILENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/prompts.csv"
        with pytest.raises(TryAgain, match="storage did not answer"):
            gather_sources((url,), tmp_path)


class _Dripping(BaseHTTPRequestHandler):
    """Sends a byte now and then, of the headers or of what follows, until nobody listens."""

    def do_GET(self) -> None:
        if self.path.startswith("/body"):
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
        else:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nServer: ")
        with suppress(OSError):
            while True:
                self.wfile.write(b"x")
                time.sleep(0.01)

    def do_HEAD(self) -> None:
        self.send_response(405)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("part", ["headers", "body"])
def test_server_that_sends_a_byte_now_and_then_is_given_up(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(web_response, "PACE_SECONDS", 0.3)
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _Dripping)) as url:
        with pytest.raises(TryAgain, match="the server sends less than 4 kB a second"):
            gather_sources((f"{url}/{part}.csv",), tmp_path)
        with pytest.raises(TryAgain, match="the server sends less than 4 kB a second"):
            read_text(f"{url}/{part}.yaml")


class _Whole(BaseHTTPRequestHandler):
    """Sends many bytes at once, and knows nothing of ranges."""

    rows = 20_000
    body = b"prompt\n" + (b"x" * 999 + b"\n") * rows

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.body)

    do_HEAD = do_GET  # noqa: N815  # as the library names it

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plain_server() -> Iterator[str]:
    """The URL of a server of large files."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _Whole)) as url:
        yield url


def test_large_table_comes_from_a_server_that_knows_no_ranges(
    plain_server: str, tmp_path: Path
) -> None:
    uri = f"{plain_server}/a.csv"
    (source,) = gather_sources((uri,), tmp_path)
    assert source.path.read_bytes() == _Whole.body


def test_server_that_waits_for_its_reader_is_not_called_slow(
    plain_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_response, "PACE_SECONDS", 0.1)
    files, path = open_filesystem(f"{plain_server}/a.csv")
    with files.open(path, "rb", block_size=0) as source:
        content = source.read(1000)
        time.sleep(1.0)  # several looks
        while chunk := source.read(2**20):
            content += chunk
    assert content == _Whole.body


@pytest.mark.parametrize(
    "host", ["2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518"]
)
def test_odd_spellings_of_addresses_lead_nowhere(host: str) -> None:
    with pytest.raises(BadInput):
        read_text(f"http://{host}/job.yaml")


class _Endless(BaseHTTPRequestHandler):
    """Knows no ranges, and sends far more than a connection holds that nobody reads from."""

    chunks = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            for _ in range(256):
                self.wfile.write(bytes(2**20))
                _Endless.chunks += 1

    def do_HEAD(self) -> None:
        self.send_response(405)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_job_file_is_read_no_further_than_it_may_be_long() -> None:
    message = "has more than the 1048576 bytes of any settings"
    with (
        running(ThreadingHTTPServer(("127.0.0.1", 0), _Endless)) as url,
        pytest.raises(BadInput, match=message),
    ):
        read_text(f"{url}/job.yaml")
    assert _Endless.chunks < 256


class _Answers(BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/").removesuffix(".csv")))
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815  # as the library names it

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, Missing), (403, StorageRefused), (429, TryAgain), (500, TryAgain), (503, TryAgain)],
)
def test_table_behind_a_server_that_is_busy_is_not_called_absent(
    status: int, kind: type[KilnError], tmp_path: Path
) -> None:
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _Answers)) as url, pytest.raises(kind):
        gather_sources((f"{url}/{status}.csv",), tmp_path)
