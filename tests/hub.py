"""A model hub on loopback: as much of its API as resolving and downloading one model takes."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
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
PIECE_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, slots=True)
class Hub:
    """Where the hub listens, the files that clients downloaded, and the commits of names.

    Tests move a branch by setting another commit in `names`: the files are the same.
    `first_answers` are statuses with their headers, which come before any other answer, such as of
    a hub that has too many requests. `requests` are the paths of all requests.
    """

    endpoint: str
    requested_files: list[str]
    names: dict[str, str]
    first_answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def hub(folder: Path) -> Iterator[Hub]:
    """A hub with the model in `folder` as MODEL at REVISION, and two models that it refuses."""
    requested_files: list[str] = []
    names = {"main": REVISION}
    first_answers: list[tuple[int, dict[str, str]]] = []
    requests: list[str] = []
    state = {
        "folder": folder,
        "requested_files": requested_files,
        "names": names,
        "first_answers": first_answers,
        "requests": requests,
    }
    handler = type("Handler", (_Handler,), state)
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
        yield Hub(url, requested_files, names, first_answers, requests)


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
        else:
            self._answer_path()

    def _answer_path(self) -> None:
        path = unquote(urlsplit(self.path).path).removeprefix("/api/models").strip("/")
        verbs = ("/tree/", "/revision/", "/resolve/")
        verb = next((verb for verb in verbs if verb in path), verbs[-1])
        name, _, rest = path.partition(verb)
        revision, _, file = rest.partition("/")
        commit = self.names.get(revision, revision)
        if name == GATED:
            self._refuse(403, "GatedRepo")
        elif name == FORBIDDEN:
            self._refuse(403, None)
        elif name != MODEL:
            self._refuse(404, "RepoNotFound")
        elif commit not in (REVISION, *self.names.values()):
            self._refuse(404, "RevisionNotFound")
        elif verb != "/resolve/":
            self._list(name, commit, verb)
        elif (self.folder / file).is_file():
            self._file(file, commit)
        else:
            self._refuse(404, "EntryNotFound")

    def _list(self, name: str, commit: str, verb: str) -> None:
        files = [self._entry(path) for path in self._files()]
        siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in files]
        answer = {"id": name, "sha": commit, "siblings": siblings}
        content = json.dumps(answer if verb == "/revision/" else files).encode()
        self._send(content, {"Content-Type": "application/json"})

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def _entry(self, path: Path) -> dict[str, object]:
        name, content = path.relative_to(self.folder).as_posix(), path.read_bytes()
        return {"type": "file", "path": name, "size": len(content), "oid": _blob(content)}

    def _file(self, name: str, commit: str) -> None:
        if self.command == "GET":
            self.requested_files.append(name)
        content = (self.folder / name).read_bytes()
        headers = {"ETag": f'"{_blob(content)}"', "X-Repo-Commit": commit}
        if piece := PIECE_RANGE.fullmatch(self.headers.get("Range", "")):
            first, last = map(int, piece.groups())
            self._send(content[first : last + 1], headers, 206)
        else:
            self._send(content, headers)

    def _refuse(self, status: int, code: str | None) -> None:
        self._send(b"{}", {} if code is None else {"X-Error-Code": code}, status)

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        headers = {**headers, "Content-Length": str(len(content))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _blob(content: bytes) -> str:
    """What git calls these bytes."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
