"""The life of a run on S3, step by step, and what each step must leave, whatever disturbs it.

No model is loaded: in place of `generate`, noise is committed to all parts that are missing.
"""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import fsspec

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.dataset.dataset import open_dataset
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.formats import format_of, recover_parts
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import TURNS_FOLDER
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.storage import open_store
from tests import jobs, runs
from tests.disturbance import Disturbance, request_name
from tests.s3 import WRITER, S3Server

FIRST = 10  # prompts of the first run; the second has more
FAILED = (3, 5)  # the images of the first run that fail: a round makes one, a second the other
SIZES: dict[str, object] = {
    "defaults": {"steps": 1, "width": 16, "height": 16},
    "batch": {"images": 4},
    "part": {"images": 4},
    "shard": {"images": 8},
    "limits": {"failed_share": 0.5},
    "device": "cpu",
}
Content = dict[str, bytes]
Step = Callable[[], object]


@dataclass(slots=True)
class Life:
    """The steps of a life under one output, in order, and what each of them leaves undisturbed.

    `requests` are those of each step, undisturbed, `before` what it begins with, and `found` what
    it returned where it only reads. `wholes` are the folders that a success marker vouches for, and
    `more_work` the steps that begin something new when they are done again.
    """

    wholes: ClassVar[tuple[str, ...]] = ("first", "second")
    reading_steps: ClassVar[tuple[str, ...]] = ("verify", "verify round", "list", "read")
    more_work: ClassVar[tuple[str, ...]] = ("retry", "retry again", "abandon")

    folder: Path
    bucket: str
    server: S3Server
    format: str = "parquet"
    steps: dict[str, Step] = field(default_factory=dict)
    before: dict[str, Content] = field(default_factory=dict)
    after: dict[str, Content] = field(default_factory=dict)
    requests: dict[str, list[str]] = field(default_factory=dict)
    found: dict[str, object] = field(default_factory=dict)
    files: Any = None  # of fsspec, past the proxy
    _bodies: Content = field(default_factory=dict)  # by their MD5 sums, which are entity tags

    def __post_init__(self) -> None:
        """Connect past the proxy, and list the steps."""
        self.files = fsspec.filesystem(
            "s3",
            endpoint_url=self.server.endpoint,
            key=WRITER.key,
            secret=WRITER.secret,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self.steps = self.list_steps()

    def list_steps(self) -> dict[str, Step]:
        """The steps in their order."""
        first = self.job("first", FIRST)
        second = self.job("second", FIRST + 4, skip_existing=True)
        abandoned = self.job("abandoned", 5)
        return {
            "plan": lambda: make_plan(first),
            "generate": lambda: make_missing(self.uri("first"), FAILED),
            "aggregate": lambda: aggregate(self.uri("first")),
            "verify": lambda: verify(self.uri("first")),
            "aggregate again": lambda: aggregate(self.uri("first")),
            "retry": lambda: self._retry(1),
            "aggregate round": lambda: aggregate(self.uri("first")),
            "verify round": lambda: verify(self.uri("first")),
            "retry again": lambda: self._retry(),
            "aggregate rounds": lambda: aggregate(self.uri("first")),
            "plan second": lambda: make_plan(second),
            "generate second": lambda: make_missing(self.uri("second")),
            "aggregate second": lambda: aggregate(self.uri("second")),
            "abandon": lambda: self._abandon(abandoned),
            "list": lambda: list_runs(self.output),
            "read": lambda: read_images(self.output),
            "gc": lambda: gc(self.output, -1, remove=True),
        }

    @property
    def root(self) -> str:
        """The URI of the folder that has all that the steps write."""
        return f"s3://{self.bucket}/{self.format}"

    @property
    def output(self) -> str:
        """The URI of the output."""
        return self.root

    def uri(self, run: str) -> str:
        """The URI of a run."""
        return f"{self.output}/{run}"

    def job(self, name: str, images: int, **settings: object) -> Job:
        """A job of so many images, with duplicates and a row that is rejected."""
        prompts = [f"a red circle number {number}" for number in range(images)]
        prompts += [prompts[0], ""]
        limits = {"limits": {"failed_share": 0.5, "rejected_share": 0.5}}
        return jobs.job(
            self.folder / name,
            {"prompt": prompts},
            output=self.output,
            run_id=name,
            format=self.format,
            **{**SIZES, **limits, **settings},
        )

    def do(self, name: str) -> None:
        """Do a step. Raises AssertionError where one that only reads finds other things."""
        found = self.steps[name]()
        if name in self.reading_steps and self.found.setdefault(name, found) != found:
            raise AssertionError(f"{name} found {found}, and not {self.found[name]}")

    def record(self, network: Disturbance) -> None:
        """Live it once, undisturbed, and note what each step does."""
        content: Content = {}
        for name in self.steps:
            self.before[name] = content
            network.rest()
            self.do(name)
            self.requests[name] = sorted(map(request_name, network.requests))
            content = self.content()
            self.after[name] = content
            self._bodies |= {_md5(body): body for body in content.values()}

    def content(self) -> Content:
        """Every object that the steps wrote."""
        path = self.root.removeprefix("s3://")
        entries = self.files.find(path, detail=True, refresh=True)
        result: Content = {}
        for name, entry in entries.items():
            if entry["type"] == "directory":
                continue
            etag = str(entry["ETag"]).strip('"')
            body = self._bodies.get(etag)
            if body is None:
                body = self.files.cat_file(name)
            result[name.removeprefix(f"{path}/")] = body
        return result

    def restore(self, content: Content) -> None:
        """Let the root have these objects and no others."""
        path = self.root.removeprefix("s3://")
        current = self.content()
        for key in current.keys() - content.keys():
            self.files.rm_file(f"{path}/{key}")
        changed = {key: body for key, body in content.items() if current.get(key) != body}
        for key, body in changed.items():
            self.files.pipe_file(f"{path}/{key}", body)

    def _retry(self, *failed: int) -> None:
        make_round(self.uri("first"), failed)

    def _abandon(self, job: Job) -> None:
        """Leave an unfinished run, and a part that no plan names."""
        make_missing(make_plan(job).uri)
        open_store(self.uri("first")).create("images/00009-0000.parquet", b"left behind")


def lasting(content: Content) -> Content:
    """The objects but those that say whose turn it was: each process leaves one of its own."""
    return {key: body for key, body in content.items() if f"/{TURNS_FOLDER}/" not in key}


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def make_missing(uri: str, failed: Collection[int] = ()) -> None:
    """Commit noise to all parts of a run that are missing; the images at `failed` fail."""
    store = open_store(uri)
    plan = load_plan(store)
    part_format = format_of(plan.job)
    start = 0
    for number in range(len(plan.shards)):
        shard = read_shard(store, plan, number)
        missing = recover_parts(store, part_format, missing_parts(store, shard))
        for part in shard:
            count = part.rows.num_rows
            images = [_image(place, start + place in failed) for place in range(count)]
            if part in missing:
                part_format.pack(part, images).commit(store)
            start += count


def make_round(run: str, failed: Collection[int] = ()) -> None:
    """Plan the next round of a run, if there is anything to make, and commit noise to it."""
    store = open_store(run)
    retry_round = plan_next_round(store, load_plan(store))
    if retry_round is not None:
        make_missing(retry_round.store.uri, failed)


def _image(place: int, is_failed: bool) -> EncodedImage:
    return runs.not_ok(place) if is_failed else runs.encoded(place)


def read_images(uri: str) -> bytes:
    """A hash of all images of the finished runs under an output."""
    digest = hashlib.sha256()
    for batch in open_dataset(uri, columns=["image"]).to_batches():
        for image in batch["image"].to_pylist():
            digest.update(image["bytes"])
    return digest.digest()
