"""A hub of datasets on loopback: as much of its API as making and tagging one takes."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from tests.servers import running

TOKEN = "hf_a-token-of-tests"  # noqa: S105  # of no hub
Files = dict[str, bytes]


@dataclass(slots=True)
class DatasetHub:
    """What the hub has: uploaded objects by hash, commits with their files, tags.

    `uploads` are the hashes of what was sent, in order. `answers_left` is the number of requests
    after which it answers 503.
    """

    endpoint: str = ""
    objects: Files = field(default_factory=dict)
    commits: list[Files] = field(default_factory=lambda: [{}])
    tags: dict[str, int] = field(default_factory=dict)
    uploads: list[str] = field(default_factory=list)
    private: bool | None = None
    answers_left: float = float("inf")
    requests: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Forget everything."""
        self.objects.clear()
        self.commits[:] = [{}]
        for record in (self.tags, self.uploads, self.requests):
            record.clear()

    @property
    def files(self) -> Files:
        """The files of the newest commit."""
        return self.commits[-1]


@contextmanager
def dataset_hub() -> Iterator[DatasetHub]:
    """A hub without a dataset."""
    hub = DatasetHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as endpoint:
        hub.endpoint = endpoint
        yield hub


def commit_name(number: int) -> str:
    """What the hub calls a commit."""
    return f"{number:040x}"


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[DatasetHub]

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        body = self._read_body()
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(path)
        self.hub.answers_left -= 1
        if self.hub.answers_left < 0:
            self._send({}, 503)
        elif (
            not path.startswith("/objects/") and self.headers["Authorization"] != f"Bearer {TOKEN}"
        ):
            self._send({}, 401)
        else:
            self._send(self._answer_of(path, body))

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer_of(self, path: str, body: bytes) -> object:
        hub = self.hub
        if path.startswith("/objects/"):
            digest = hashlib.sha256(body).hexdigest()
            hub.uploads.append(digest)
            hub.objects[digest] = body
            return {}
        if path == "/api/repos/create":
            settings = json.loads(body)
            hub.private = settings.get("private") or settings.get("visibility") == "private"
            return {"url": f"{hub.endpoint}/datasets/kiln/shapes", "name": "kiln/shapes"}
        if path.endswith("/objects/batch"):
            objects = json.loads(body)["objects"]
            return {"transfer": "basic", "objects": list(map(self._action, objects))}
        if "/preupload/" in path:
            return {"files": list(map(self._mode, json.loads(body)["files"]))}
        if "/commit/" in path:
            return self._commit(body)
        if "/tag/" in path:
            revision = path.rpartition("/")[2]
            hub.tags[json.loads(body)["tag"]] = int(revision, 16)
            return {}
        return self._describe(path)

    def _describe(self, path: str) -> object:
        hub = self.hub
        if "/tree/" in path:
            return [self._entry(name) for name in sorted(hub.files)]
        if path.endswith("/refs"):
            tags = [self._tag(name) for name in hub.tags]
            return {"branches": [], "converts": [], "tags": tags, "pullRequests": []}
        name = commit_name(len(hub.commits) - 1)
        return {"id": "kiln/shapes", "sha": name, "siblings": []}

    def _action(self, wanted: dict[str, object]) -> dict[str, object]:
        digest = str(wanted["oid"])
        if digest in self.hub.objects:
            return wanted
        upload = {"href": f"{self.hub.endpoint}/objects/{digest}", "header": {}}
        return {**wanted, "actions": {"upload": upload}}

    def _mode(self, file: dict[str, object]) -> dict[str, object]:
        path = str(file["path"])
        mode = "regular" if path.endswith(".md") else "lfs"
        content = self.hub.files.get(path)
        oid = None
        if content is not None:
            oid = _blob(content) if mode == "regular" else hashlib.sha256(content).hexdigest()
        return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid}

    def _commit(self, body: bytes) -> dict[str, object]:
        files = dict(self.hub.files)
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        self.hub.commits.append(files)
        name = commit_name(len(self.hub.commits) - 1)
        url = f"{self.hub.endpoint}/datasets/kiln/shapes/commit/{name}"
        return {"success": True, "commitOid": name, "commitUrl": url}

    def _entry(self, name: str) -> dict[str, object]:
        content = self.hub.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": _blob(content)}

    def _tag(self, name: str) -> dict[str, object]:
        commit = commit_name(self.hub.tags[name])
        return {"name": name, "ref": f"refs/tags/{name}", "targetCommit": commit}

    def _send(self, answer: object, status: int = 200) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _blob(content: bytes) -> str:
    """What git calls these bytes."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
