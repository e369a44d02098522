"""A model hub on loopback: as much of its API as resolving and downloading one model takes."""

import gzip
import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest

from tests.servers import running

MODEL = "kiln/shapes"
GATED = "kiln/gated"
FORBIDDEN = "kiln/forbidden"
URLS = "{repo_id}/resolve/{revision}/{filename}"
TOKEN_PATH = "storage-token"  # noqa: S105  # where clients ask for one
PROGRAMS_PATH = "/api/agent-harnesses"
STORAGE_PATH = "/api/storage/"  # of files, to which a hub may lead
PIECE_BYTES = 8  # of a file that is broken off
PIECE_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where the hub listens, the files that clients downloaded, and the commits of names.

    Tests move a branch by setting another commit in `names`: the files are the same.
    `first_answers` are statuses with their headers, which come before any other answer, such as of
    a hub that has too many requests. `headers` come with every answer, in place of its own. Of
    `disturbances`, "page" answers as a gateway does, "cut" ends files early, "break" breaks off
    in the middle of them, "resume" so that each time a bit more comes, "empty" lists none,
    "stored" has them in a storage that lacks them, "outside" lists hashes that lead elsewhere,
    "surrogate" a file whose name is no text, "again" leads from a list to itself, "endless" and
    "elsewhere" from each part of it to another, "swelling" sends a compressed one that is large,
    "programs" answers with a list where the client looks up names of programs, and "drip" sends a
    byte now and then. `requests` are the paths of all requests.
    """

    endpoint: str
    requested_files: list[str]
    names: dict[str, str]
    first_answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    disturbances: set[str] = field(default_factory=set)
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


@contextmanager
def hub(folder: Path, address: str = "127.0.0.1") -> Iterator[Hub]:
    """A hub with the model in `folder` as MODEL at REVISION, and two models that it refuses."""
    requested_files: list[str] = []
    names = {"main": REVISION}
    first_answers: list[tuple[int, dict[str, str]]] = []
    disturbances: set[str] = set()
    headers: dict[str, str] = {}
    requests: list[str] = []
    state = {
        "folder": folder,
        "requested_files": requested_files,
        "names": names,
        "first_answers": first_answers,
        "disturbances": disturbances,
        "own_headers": headers,
        "requests": requests,
    }
    handler = type("Handler", (_Handler,), state)
    with running(ThreadingHTTPServer((address, 0), handler)) as url:
        endpoint = url.replace("127.0.0.1", address)
        yield Hub(endpoint, requested_files, names, first_answers, disturbances, headers, requests)


@contextmanager
def serving_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the model in `folder`, as the hub of this process, and an empty cache."""
    from huggingface_hub import constants, hf_api

    with hub(folder) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(hf_api.api, "endpoint", server.endpoint)  # as diffusers asks it
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{server.endpoint}/{URLS}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


class _Handler(BaseHTTPRequestHandler):
    folder: ClassVar[Path]
    requested_files: ClassVar[list[str]]
    names: ClassVar[dict[str, str]]
    first_answers: ClassVar[list[tuple[int, dict[str, str]]]]
    disturbances: ClassVar[set[str]]
    own_headers: ClassVar[dict[str, str]]
    requests: ClassVar[list[str]]

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        self.requests.append(self.path)
        if self.first_answers:
            status, headers = self.first_answers.pop(0)
            self._send(b"{}", headers, status)
        elif "drip" in self.disturbances:
            self._drip()
        elif "page" in self.disturbances:
            self._send(b"<html>Sign in to this network</html>", {"Content-Type": "text/html"})
        elif "programs" in self.disturbances and self.path == PROGRAMS_PATH:
            self._send(b"[7]", {"Content-Type": "application/json"})
        elif self.path.startswith(STORAGE_PATH):
            self._file(self.path.removeprefix(STORAGE_PATH), REVISION)
        else:
            self._answer_path()

    def _answer_path(self) -> None:
        path = unquote(urlsplit(self.path).path).removeprefix("/api/models").strip("/")
        verbs = ("/tree/", "/revision/", "/resolve/")
        verb = next((verb for verb in verbs if verb in path), verbs[-1])
        name, _, rest = path.partition(verb)
        revision, _, file = rest.partition("/")
        commit = self.names.get(revision, revision)
        if path == TOKEN_PATH:
            self._send_storage_token()
        elif name == GATED:
            self._refuse(403, "GatedRepo")
        elif name == FORBIDDEN:
            self._refuse(403, None)
        elif name != MODEL:
            self._refuse(404, "RepoNotFound")
        elif commit not in (REVISION, *self.names.values()):
            self._refuse(404, "RevisionNotFound")
        elif verb != "/resolve/" or "elsewhere" in self.disturbances:
            self._list(name, commit, verb)
        elif (self.folder / file).is_file():
            self._file(file, commit)
        else:
            self._refuse(404, "EntryNotFound")

    def _list(self, name: str, commit: str, verb: str) -> None:
        is_empty = "empty" in self.disturbances
        files = [] if is_empty else [self._entry(path) for path in self._files()]
        if "surrogate" in self.disturbances:
            files.append({"type": "file", "path": "\ud800.json", "size": 1, "oid": _blob(b"a")})
        siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in files]
        answer = {"id": name, "sha": commit, "siblings": siblings}
        self._json(answer if verb == "/revision/" else files)

    def _json(self, answer: object) -> None:
        headers = {"Content-Type": "application/json"}
        content = json.dumps(answer).encode()
        another = f"?cursor={len(self.requests)}"
        following = {
            "again": self.path,
            "endless": f"{urlsplit(self.path).path}{another}",
            "elsewhere": f"/{MODEL}/resolve/main/list{another}",
        }
        for disturbance in self.disturbances & following.keys():
            headers["Link"] = f'<{self._endpoint}{following[disturbance]}>; rel="next"'
        if "swelling" in self.disturbances:
            headers["Content-Encoding"] = "gzip"
            content = gzip.compress(content + b" " * 2**21)
        self._send(content, headers)

    def _drip(self) -> None:
        self.send_response(200)
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", '"dripping"')
        self.end_headers()
        with suppress(OSError):
            while self.command == "GET":
                self.wfile.write(b" ")
                time.sleep(0.01)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def _entry(self, path: Path) -> dict[str, object]:
        name, content = path.relative_to(self.folder).as_posix(), path.read_bytes()
        entry = {"type": "file", "path": name, "size": len(content), "oid": _blob(content)}
        if "outside" in self.disturbances:
            lfs = {"oid": "../../../outside", "size": len(content), "pointerSize": 1}
            entry |= {"lfs": lfs, "xetHash": "a" * 64}
        return entry

    def _file(self, name: str, commit: str) -> None:
        if self.command == "GET":
            self.requested_files.append(name)
        content = (self.folder / name).read_bytes()
        headers = {"ETag": f'"{_blob(content)}"', "X-Repo-Commit": commit}
        if "stored" in self.disturbances:
            route = f"{self._endpoint}/{TOKEN_PATH}"
            headers |= {"X-Xet-Hash": "a" * 64, "X-Xet-Refresh-Route": route}
        if "cut" in self.disturbances and self.command == "GET":
            content = content[: len(content) // 2]
        if self.disturbances & {"break", "resume"} and self.command == "GET":
            self._break_off(content)
        elif piece := PIECE_RANGE.fullmatch(self.headers.get("Range", "")):
            first, last = map(int, piece.groups())
            self._send(content[first : last + 1], headers, 206)
        else:
            self._send(content, headers)

    def _break_off(self, content: bytes) -> None:
        """Begin a file, with "resume" where the client asks for, and send one piece of it."""
        range_start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-")
        start = int(range_start) if "resume" in self.disturbances else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : start + PIECE_BYTES])

    @property
    def _endpoint(self) -> str:
        return f"http://{self.headers['Host']}"

    def _send_storage_token(self) -> None:
        token = {
            "Cas-Url": self._endpoint,
            "Access-Token": "token",
            "Token-Expiration": "9999999999",
        }
        self._send(b"{}", {f"X-Xet-{name}": value for name, value in token.items()})

    def _refuse(self, status: int, code: str | None) -> None:
        self._send(b"{}", {} if code is None else {"X-Error-Code": code}, status)

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        headers = {**headers, **self.own_headers, "Content-Length": str(len(content))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _blob(content: bytes) -> str:
    """What git calls these bytes."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
