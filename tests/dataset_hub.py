"""A hub of datasets on loopback: as much of its API as making, tagging and loading one takes."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers import running

TOKEN = "hf_a-token-of-tests"  # noqa: S105  # of no hub
REPOSITORY = "kiln/shapes"
REPOSITORY_API = f"/api/datasets/{REPOSITORY}"
FILE_PATH = re.compile(rf"/datasets/{REPOSITORY}/resolve/([^/]+)/(.+)")
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
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

    def find_commit(self, revision: str) -> int | None:
        """The number of a branch, tag or commit."""
        if revision == "main":
            return len(self.commits) - 1
        if COMMIT_PATTERN.fullmatch(revision):
            return int(revision, 16)
        return self.tags.get(revision)


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

    def do_HEAD(self) -> None:
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
        elif match := FILE_PATH.fullmatch(path):
            self._send_file(*match.groups())
        elif "/tag/" in path and json.loads(body)["tag"] in self.hub.tags:
            self._send({}, 409)
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
            return {"url": f"{hub.endpoint}/datasets/{REPOSITORY}", "name": REPOSITORY}
        if path.endswith("/objects/batch"):
            objects = json.loads(body)["objects"]
            return {"transfer": "basic", "objects": list(map(self._action, objects))}
        if "/preupload/" in path:
            return {"files": list(map(self._mode, json.loads(body)["files"]))}
        if "/commit/" in path:
            return self._commit(body)
        if "/tag/" in path:
            return self._tag_commit(path.rpartition("/")[2], json.loads(body)["tag"])
        if "/paths-info/" in path:
            return self._describe_paths(path.rpartition("/")[2], body)
        return self._describe(path)

    def _tag_commit(self, revision: str, name: str) -> dict[str, object]:
        self.hub.tags[name] = int(revision, 16)
        return {}

    def _describe(self, path: str) -> object:
        hub = self.hub
        if path.startswith(f"{REPOSITORY_API}/tree/"):
            revision, _, folder = path.removeprefix(f"{REPOSITORY_API}/tree/").partition("/")
            return self._list_folder(hub.commits[hub.find_commit(revision) or 0], folder)
        if path.endswith("/refs"):
            tags = [self._tag(name) for name in hub.tags]
            return {"branches": [], "converts": [], "tags": tags, "pullRequests": []}
        _, _, revision = path.partition("/revision/")
        name = commit_name(hub.find_commit(revision or "main") or 0)
        return {"id": REPOSITORY, "sha": name, "siblings": []}

    def _list_folder(self, files: Files, folder: str) -> list[dict[str, object]]:
        """What is directly in a folder, or with `recursive` all that is below it."""
        query = parse_qs(urlsplit(self.path).query)
        is_recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        entries = [
            entry for entry in _all_entries(files) if folder in ("", *_parents(str(entry["path"])))
        ]
        return [
            entry
            for entry in entries
            if is_recursive or _parents(str(entry["path"]))[:1] == ([folder] if folder else [])
        ]

    def _describe_paths(self, revision: str, body: bytes) -> list[dict[str, object]]:
        files = self.hub.commits[self.hub.find_commit(revision) or 0]
        fields = parse_qs(body.decode())
        paths = fields["paths"] if "paths" in fields else json.loads(body)["paths"]
        return [entry for entry in _all_entries(files) if entry["path"] in paths]

    def _action(self, wanted: dict[str, object]) -> dict[str, object]:
        digest = str(wanted["oid"])
        if digest in self.hub.objects:
            return wanted
        upload = {"href": f"{self.hub.endpoint}/objects/{digest}", "header": {}}
        return {**wanted, "actions": {"upload": upload}}

    def _mode(self, file: dict[str, object]) -> dict[str, object]:
        path = str(file["path"])
        mode = _upload_mode(path)
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

    def _tag(self, name: str) -> dict[str, object]:
        commit = commit_name(self.hub.tags[name])
        return {"name": name, "ref": f"refs/tags/{name}", "targetCommit": commit}

    def _send(self, answer: object, status: int = 200) -> None:
        self._send_content(json.dumps(answer).encode(), status, "application/json")

    def _send_content(self, content: bytes, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_file(self, revision: str, path: str) -> None:
        """Send a file of a commit, or the range of it that was asked for."""
        number = self.hub.find_commit(revision)
        content = None if number is None else self.hub.commits[number].get(path)
        if number is None or content is None:
            self.send_response(404)
            self.send_header(
                "X-Error-Code", "RevisionNotFound" if number is None else "EntryNotFound"
            )
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        part = content
        bounds = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if bounds is not None:
            end = int(bounds[2] or len(content) - 1) + 1
            part = content[int(bounds[1]) : end]
        self.send_response(200 if bounds is None else 206)
        if bounds is not None:
            last = int(bounds[1]) + len(part) - 1
            self.send_header("Content-Range", f"bytes {bounds[1]}-{last}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit_name(number))
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(part)


def _all_entries(files: Files) -> list[dict[str, object]]:
    """Every file and folder of a commit, as the hub lists them."""
    folders = {folder for path in files for folder in _parents(path)}
    entries: list[dict[str, object]] = [
        {"type": "directory", "path": folder, "oid": _blob(folder.encode()), "size": 0}
        for folder in folders
    ]
    for path, content in files.items():
        entry = {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}
        if _upload_mode(path) == "lfs":
            digest = hashlib.sha256(content).hexdigest()
            entry |= {"lfs": {"oid": digest, "size": len(content), "pointerSize": 100}}
            entry["oid"] = _blob(digest.encode())  # of another file, which leads to the content
        entries.append(entry)
    return sorted(entries, key=lambda entry: str(entry["path"]))


def _upload_mode(path: str) -> str:
    return "regular" if path.endswith(".md") else "lfs"


def _parents(path: str) -> Sequence[str]:
    """The folders that hold a path, the innermost first."""
    return [str(folder) for folder in PurePosixPath(path).parents][:-1]


def _blob(content: bytes) -> str:
    """What git calls these bytes."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
