"""An output with images to look at, and a gallery of it that is served on loopback."""

import http.client
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow.parquet as pq

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.gallery.gallery import open_gallery
from imagekiln.steps.gallery.server import GalleryServer
from imagekiln.steps.imaging.measures import measure_image
from imagekiln.steps.local import run
from imagekiln.steps.runs.image import EncodedImage, ImageQuality
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests.runs import (
    DRAWABLE,
    UNDRAWABLE,
    encoded,
    fill,
    job,
    not_ok,
    picture,
    planned,
    write_prompts,
)

IMAGES = 10  # of each run
SHARD = 4
FAILED = 3
HOSTILE = '<img src=x onerror="window.hacked = 1"> \'); DROP TABLE images; -- \u202e\x1b[2J %_'
HOSTILE_COLUMN = 'x"); DROP TABLE images; -- <b>'
Row = dict[str, Any]
# Conditions, and which rows of the manifests fulfill them.
SELECTIONS: list[tuple[tuple[tuple[str, str, str], ...], Callable[[Row], bool]]] = [
    ((("prompt", "contains", "KETTLE night"),), lambda row: "Kettle" in str(row["prompt"])),
    ((("prompt", "contains", "%_"),), lambda row: row["prompt"] == HOSTILE),
    ((("prompt", "contains", "');"),), lambda row: row["prompt"] == HOSTILE),
    ((("prompt", "is", HOSTILE),), lambda row: row["prompt"] == HOSTILE),
    ((("status", "is", "failed"),), lambda row: row["status"] == "failed"),
    ((("marks", "is", "low_contrast"),), lambda row: "low_contrast" in (row["marks"] or [])),
    ((("marks", "is", "') OR 1 --"),), lambda _: False),
    ((("run_id", "is", "night-1"),), lambda row: row["run_id"] == "night-1"),
    ((("tag", "is", "tag 2"), ("score", "at_least", "1.5")),
     lambda row: row["tag"] == "tag 2" and row["score"] >= 1.5),
    ((("score", "at_most", "1"),), lambda row: row["score"] <= 1),
    ((("seed", "is", "12"),), lambda row: row["seed"] == 12),
    (((HOSTILE_COLUMN, "contains", "drop table"),), bool),
    (((HOSTILE_COLUMN, "is", "'"),), lambda row: not row),
]  # fmt: skip


def write_runs(folder: Path, output: str) -> None:
    """Two runs with a failed image each; the columns that they carry are somebody's."""
    for night in range(2):
        rows = [
            {
                "prompt": f"night {night} number {place} {'Kettle' if place % 5 == 0 else ''}",
                "tag": f"tag {place % 3}",
                "score": float(place % 4) + night,
                HOSTILE_COLUMN: HOSTILE,
            }
            for place in range(IMAGES)
        ]
        rows[1]["prompt"] = HOSTILE
        result = planned(
            folder / str(night),
            output,
            rows,
            run_id=f"night-{night}",
            carry=["tag", "score", HOSTILE_COLUMN],
            shard={"images": SHARD},
            part={"images": 2},
            limits={"failed_share": 0.5},
            gates={"low_contrast": {"below": 0.5}},
        )
        outcomes = {place: _measured(100 * night + place) for place in range(IMAGES)}
        fill(result, outcomes | {FAILED: not_ok(0, error=HOSTILE)})
        aggregate(result.uri)


def write_best_of(folder: Path, output: str | None = None) -> str:
    """A run of another job: four candidates of a kettle, of a pot without the best, of no pan."""
    rows: list[Row] = [
        {"prompt": "a kettle", **DRAWABLE},
        {"prompt": "a pot", **DRAWABLE},
        {"prompt": "a pan", **UNDRAWABLE},
    ]
    best = job(
        write_prompts(folder / "prompts.parquet", rows),
        output or str(folder / "out"),
        name="best",
        scores={"spread": {"kind": "own", "entry": "tests.scorers:SeedScore"}},
        keep="best 1 of 4 by spread",
        limits={"failed_share": 0.5},
    )
    uri = run(best, NoProgress(), Stop()).uri
    stored = pq.read_table(f"{uri}/images", columns=["image_id", "prompt"]).to_pylist()
    (pot,) = (row["image_id"] for row in stored if row["prompt"] == "a pot")
    imagekiln.forget(uri, ids=[pot], remove=True)
    return uri


def _measured(place: int) -> EncodedImage:
    """A picture of noise with its perceptual hash; every second one is marked."""
    marks = ("low_contrast",) if place % 2 else ()
    rgb = picture(place).rgb
    assert rgb is not None
    measures = measure_image(rgb)
    return replace(encoded(place), quality=ImageQuality(marks, None, measures))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server sent."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> object:
        return json.loads(self.content)


@dataclass(frozen=True, slots=True)
class Client:
    """Asks a server, with any header."""

    server: GalleryServer

    def get(
        self,
        path: str,
        options: Mapping[str, object] | None = None,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=60)
        query = urlencode(dict(options or {}))
        connection.request(
            method, f"{path}?{query}" if query else path, headers=dict(headers or {})
        )
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        connection.close()
        return answer

    def tiles(self, *where: tuple[str, str, str], **options: object) -> list[dict[str, object]]:
        """A page of images."""
        present = {name: value for name, value in options.items() if value is not None}
        answer = self.get("/images", {"where": conditions(*where), **present})
        assert answer.status == http.client.OK, answer.content
        rows: list[dict[str, object]] = json.loads(answer.content)
        return rows


def conditions(*where: tuple[str, str, str]) -> str:
    """Conditions as the page sends them."""
    names = ("column", "operator", "value")
    return json.dumps([dict(zip(names, condition, strict=True)) for condition in where])


def image_path(noun: str, tile: dict[str, object]) -> str:
    return f"/{noun}/{tile['number']}/{tile['image_id']}"


@contextmanager
def serving(uri: str) -> Iterator[Client]:
    """A gallery that is served while the block runs, with all images indexed."""
    with open_gallery(uri) as gallery, GalleryServer(gallery, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            while not gallery.state().is_complete:
                time.sleep(0.01)
            yield Client(server)
        finally:
            server.shutdown()
            thread.join()


class FileRequest(http.server.SimpleHTTPRequestHandler):
    """A web server over a folder that sends parts of files, as object stores do."""

    def do_GET(self) -> None:
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if part is None or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()[int(part[1]) : int(part[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class FileServer(http.server.ThreadingHTTPServer):
    """A web server over a folder."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


@contextmanager
def serving_files(folder: Path, handler: type[FileRequest] = FileRequest) -> Iterator[FileServer]:
    """A web server over a folder while the block runs."""
    request = partial(handler, directory=str(folder))
    with FileServer(("127.0.0.1", 0), request) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def allowed_sources(policy: str) -> dict[str, str]:
    """What a policy allows by directive, where it knows scripts and styles by their hashes."""
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    for name in ("script-src", "style-src"):
        sources = directives.pop(name).split()
        assert all(source.startswith("'sha256-") for source in sources), name
    return directives
