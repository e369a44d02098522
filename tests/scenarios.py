"""Scenarios of what can go wrong in the life of a run on S3, each made from a seed alone.

No model is loaded: in place of `generate`, noise is committed to all parts that are missing. Each
step of a life meets failing requests, is killed, or is asked to stop; run again, it must leave what
an undisturbed life leaves. Processes at work at once are in `tests/histories.py`.
"""

import hashlib
import json
import os
import random
import re
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.dataset.dataset import open_dataset
from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.export.step import export
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.retry import announce_retry
from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runs.parts import pack_part
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runtime.signals import Stopped, stop_on_signals
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import jobs, runs
from tests.disturbance import SERVER_FAULTS, Answer, Disturbance, Fault, Forward, request_name
from tests.s3 import WRITER, S3Server, forget_connections
from tests.texts import chance

FIRST = 10  # prompts of the first run; the second has more
FAILED = (3, 5)  # the images of the first run that fail: a retry makes one, a second the other
FORGOTTEN = ForgetSelection(prompt_parts=("number 5",))
WHOLES = ("first", "second")  # the runs that a success marker vouches for
READING_STEPS = ("verify", "verify retry", "list", "read")
MAX_BURST = 60
MAX_ATTEMPTS = 4
FOREVER = float("inf")
KINDS = ("fault", "fault", "burst", "kill", "stop")
COMMIT = re.compile(r"(?:.*/)?commits/\d+\.json")
SETTINGS: dict[str, object] = {
    "defaults": {"steps": 1, "width": 16, "height": 16},
    "batch": {"images": 4},
    "part": {"images": 4},
    "shard": {"images": 8},
    "limits": {"failed_share": 0.5, "rejected_share": 0.5},
    "device": "cpu",
}
Content = dict[str, bytes]
Step = Callable[[], object]


class Damage(AssertionError):
    """A scenario ended otherwise than it may."""


@dataclass(slots=True)
class Life:
    """The steps of a life under one output, and what each of them leaves undisturbed."""

    folder: Path
    bucket: str
    server: S3Server
    steps: dict[str, Step] = field(default_factory=dict)
    before: dict[str, Content] = field(default_factory=dict)
    after: dict[str, Content] = field(default_factory=dict)
    requests: dict[str, list[str]] = field(default_factory=dict)
    found: dict[str, object] = field(default_factory=dict)
    images_before: dict[str, dict[str, bytes]] = field(default_factory=dict)
    images: dict[str, dict[str, bytes]] = field(default_factory=dict)  # of finished runs
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
        self.steps = self._list_steps()

    def _list_steps(self) -> dict[str, Step]:
        """The steps in their order."""
        run = self.uri("first")
        first = self._job("first", FIRST)
        second = self._job("second", FIRST + 4, skip_existing=True)
        abandoned = self._job("abandoned", 5)
        return {
            "plan": lambda: make_plan(first),
            "generate": lambda: make_missing(run, FAILED),
            "aggregate": lambda: aggregate(run),
            "verify": lambda: verify(run),
            "aggregate again": lambda: aggregate(run),
            "retry": lambda: make_retry(run, (1,)),
            "aggregate retry": lambda: aggregate(run),
            "verify retry": lambda: verify(run),
            "retry again": lambda: make_retry(run),
            "aggregate retries": lambda: aggregate(run),
            "export": lambda: export(run, self.export),
            "forget": lambda: forget(run, FORGOTTEN, [self.export], remove=True),
            "plan second": lambda: make_plan(second),
            "generate second": lambda: make_missing(self.uri("second")),
            "aggregate second": lambda: aggregate(self.uri("second")),
            "abandon": lambda: make_missing(make_plan(abandoned).uri),
            "list": lambda: list_runs(self.output),
            "read": lambda: read_images(self.output),
            "gc": lambda: gc(self.output, -1, remove=True),
        }

    @property
    def output(self) -> str:
        """The URI of the output."""
        return f"s3://{self.bucket}/out"

    @property
    def export(self) -> str:
        """The URI of the export of the first run."""
        return f"s3://{self.bucket}/export"

    def uri(self, run: str) -> str:
        """The URI of a run."""
        return f"{self.output}/{run}"

    def _job(self, name: str, images: int, **settings: object) -> Job:
        """A job of so many images, with duplicates and a row that is rejected."""
        prompts = [f"a red circle number {number}" for number in range(images)]
        prompts += [prompts[0], ""]
        return jobs.job(
            self.folder / name,
            {"prompt": prompts},
            output=self.output,
            run_id=name,
            **{**SETTINGS, **settings},
        )

    def do(self, name: str) -> None:
        """Do a step. Raises Damage if one that only reads finds other things than before."""
        found = self.steps[name]()
        if name in READING_STEPS and self.found.setdefault(name, found) != found:
            raise Damage(f"{name} found {found}, and not {self.found[name]}")

    def record(self, network: Disturbance) -> None:
        """Live it once, undisturbed, and note what each step does."""
        content: Content = {}
        images: dict[str, bytes] = {}
        for name in self.steps:
            self.before[name] = content
            self.images_before[name] = images
            network.rest()
            self.do(name)
            self.requests[name] = sorted(map(request_name, network.requests))
            content = self.after[name] = self.content()
            images = self.images[name] = self.read_finished()

    def read_finished(self) -> dict[str, bytes]:
        """A hash of all images of each run that has the success marker."""
        path = self.output.removeprefix("s3://")
        runs = [run for run in WHOLES if self.files.exists(f"{path}/{run}/{SUCCESS_KEY}")]
        return {run: read_images(self.uri(run)) for run in runs}

    def content(self) -> Content:
        """Every object that the steps wrote."""
        path = self.bucket
        tags = {
            name: str(entry["ETag"]).strip('"')
            for name, entry in self.files.find(path, detail=True, refresh=True).items()
            if entry["type"] == "file"
        }
        unknown = [name for name, tag in tags.items() if tag not in self._bodies]
        read = self.files.cat(unknown) if unknown else {}
        self._bodies |= {_md5(body): body for body in read.values()}
        return {name.removeprefix(f"{path}/"): self._bodies[tag] for name, tag in tags.items()}

    def restore(self, content: Content) -> None:
        """Let the output have these objects and no others."""
        path = self.bucket
        current = self.content()
        for key in current.keys() - content.keys():
            self.files.rm_file(f"{path}/{key}")
        for key, body in content.items():
            if current.get(key) != body:
                self.files.pipe_file(f"{path}/{key}", body)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def make_missing(uri: str, failed: Collection[int] = ()) -> None:
    """Commit noise to all parts of a run that are missing; the images at `failed` fail."""
    store = open_store(uri)
    _make_missing(store, load_plan(store), failed)


def make_retry(run: str, failed: Collection[int] = ()) -> None:
    """Announce a retry of a run, if there is anything to make, and commit noise to it."""
    opened, plan = announce_retry(open_run(run))
    if plan is not None:
        _make_missing(opened.store, plan, failed)


def _make_missing(store: Store, plan: Plan, failed: Collection[int]) -> None:
    start = 0
    for number in range(len(plan.shards)):
        shard = read_shard(store, plan, number)
        missing = missing_parts(store, shard)
        for part in shard:
            count = part.rows.num_rows
            images = [_image(place, start + place in failed) for place in range(count)]
            if part in missing:
                pack_part(part, images).commit(store)
            start += count


def _image(place: int, is_failed: bool) -> EncodedImage:
    return runs.not_ok(place) if is_failed else runs.encoded(place)


def read_images(uri: str) -> bytes:
    """A hash of all images of a run, or of the finished runs under an output."""
    digest = hashlib.sha256()
    for batch in open_dataset(uri, columns=["image"]).to_batches():
        for image in batch["image"].to_pylist():
            digest.update(image["bytes"])
    return digest.digest()


def lasting(content: Content) -> Content:
    """The objects, with commits as if all were created at the same time."""
    return {key: _timeless(key, body) for key, body in content.items()}


def _timeless(key: str, body: bytes) -> bytes:
    if COMMIT.fullmatch(key) is None:
        return body
    return json.dumps({**json.loads(body), "at": 0.0}).encode()


@dataclass(slots=True)
class Bench:
    """A life that was recorded, and a proxy that disturbs it."""

    life: Life
    network: Disturbance
    log: list[str] = field(default_factory=list)

    def play(self, seed: int) -> None:
        """Play the scenario of this seed. Raises Damage."""
        dice = chance(seed)
        kind = dice.choice(KINDS)
        step = dice.choice(list(self.life.steps))
        self.log = [f"seed {seed}", step, kind]
        self._begin(step)
        with self._telling_what_was_done():
            for _ in range(dice.randint(1, MAX_ATTEMPTS)):
                self._disturb(step, kind, dice)
                self._try(step)
            self._finish(step)

    def play_fault(self, step: str, request: str, name: str) -> None:
        """Spoil the first of these requests of a step, then let it end. Raises Damage."""
        self.log = [step, f"{name} at {request}"]
        self._begin(step)
        self.network.from_request(request, 0, SERVER_FAULTS[name])
        with self._telling_what_was_done():
            self._try(step)
            self._finish(step)

    def _begin(self, step: str) -> None:
        self.life.restore(self.life.before[step])
        forget_connections()

    @contextmanager
    def _telling_what_was_done(self) -> Iterator[None]:
        try:
            yield
        except Damage as error:
            raise Damage("; ".join([*self.log, str(error)])) from error
        finally:
            self.network.rest()

    def _disturb(self, step: str, kind: str, dice: random.Random) -> None:
        requests = self.life.requests[step]
        request = dice.choice(sorted(set(requests)))
        number = dice.randrange(requests.count(request))
        name = dice.choice(sorted(SERVER_FAULTS))
        fault = SERVER_FAULTS[name]
        times: float = dice.randint(2, MAX_BURST) if kind == "burst" else 1
        if kind == "kill":
            name = dice.choice(["before", "after"])
            fault, times = _dying(acts=name == "after"), FOREVER
        elif kind == "stop":
            name, fault = "SIGTERM", _stopping
        self.log.append(f"{name} x{times} at {request} #{number}")
        self.network.from_request(request, number, fault, times)

    def _try(self, step: str) -> None:
        """One attempt, and what it must leave."""
        try:
            with stop_on_signals(at_once=True):
                self.life.do(step)
        except Stopped:
            self.log.append("stopped")
        except KilnError as error:
            self.log.append(f"exit {error.exit_code}: {error}")
            if error.exit_code != TryAgain.exit_code:
                raise Damage(f"what passes ended in exit code {error.exit_code}") from error
        self.network.rest()
        self._require_finished_whole(step)

    def _require_finished_whole(self, step: str) -> None:
        """A run with the success marker has the images that it had before, or shall have."""
        for run, images in self.life.read_finished().items():
            if images not in (self.life.images_before[step].get(run), self.life.images[step][run]):
                raise Damage(f"{run} looks finished, and has other images")

    def _finish(self, step: str) -> None:
        """Run the step undisturbed: its result must be that of an undisturbed life."""
        try:
            self.life.do(step)
        except KilnError as error:
            raise Damage(f"undisturbed, exit {error.exit_code}: {error}") from error
        differing = _difference(self.life.content(), self.life.after[step])
        if differing:
            raise Damage(f"another result: {differing}")


def _dying(*, acts: bool) -> Fault:
    """Nothing reaches the server any more, as after SIGKILL; the first request may."""
    first = [acts]

    def fault(forward: Forward) -> None:
        if first and first.pop():
            forward()

    return fault


def _stopping(forward: Forward) -> Answer:
    os.kill(os.getpid(), signal.SIGTERM)
    return forward()


def _difference(content: Content, expected: Content) -> list[str]:
    """The keys that are missing, too many, or have other bytes, of those that a life decides."""
    content, expected = lasting(content), lasting(expected)
    missing = [f"-{key}" for key in expected.keys() - content.keys()]
    extra = [f"+{key}" for key in content.keys() - expected.keys()]
    both = content.keys() & expected.keys()
    other = [f"~{key}" for key in both if content[key] != expected[key]]
    return sorted([*missing, *extra, *other])
