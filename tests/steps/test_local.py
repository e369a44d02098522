"""The whole job, end to end, on this disk and in an object store."""

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from imagekiln.steps.errors import Incomplete, TryAgain
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import SUCCESS_KEY, commit_key, part_key
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.workflows.cli.text import format_plan, format_run
from tests.runs import DRAWABLE, PROMPTS, UNDRAWABLE, job, manifest_of, write_prompts
from tests.s3 import S3_AMONG_SLOW

# The objects of a run that tell times, beside its attempts.
TIMED = {"plan.json", commit_key(0), "report/index.html"}
ROWS = PROMPTS[:10]  # shards of 8 and 2 images, in parts of 4


class RecordedProgress(NoProgress):
    """Counts what is reported."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.total = self.existing_images = self.drawn_images = 0
        self.events: list[str] = []
        self._then = then

    def show_event(self, name: str, sentence: str) -> None:  # noqa: ARG002  # for people
        self.events.append(name)

    def start(self, total: int) -> None:
        self.total = total

    def add_existing(self, images: int) -> None:
        self.existing_images += images

    def add_drawn(self, images: int) -> None:
        self.drawn_images += images
        self._then()


def _objects(uri: str) -> dict[str, str]:
    """Every object of a run but its attempts, and the hash of its bytes."""
    files, path = fsspec.core.url_to_fs(uri)
    files.invalidate_cache()  # of a listing before
    found = {name.removeprefix(path).lstrip("/"): files.cat_file(name) for name in files.find(path)}
    return {
        name: hashlib.sha256(content).hexdigest()
        for name, content in found.items()
        if not name.startswith("attempts/")
    }


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.parquet", ROWS)


@pytest.mark.quick_cases(1)
def test_a_job_becomes_a_dataset_that_reads_back(prompts: Path, store_uri: str) -> None:
    progress = RecordedProgress()
    plans: list[tuple[PlanResult, int]] = []

    def add_plan(result: PlanResult, workers: int) -> None:
        plans.append((result, workers))

    done = run(job(prompts, store_uri), progress, Stop(), add_plan)
    assert not done.before
    assert (done.summary.images, done.summary.ok) == (10, 10)
    assert (progress.total, progress.existing_images, progress.drawn_images) == (10, 0, 10)
    assert [(result.uri, workers) for result, workers in plans] == [(done.uri, 1)]
    found = verify(done.uri)
    assert (found.ok, found.bytes) == (10, done.summary.bytes)


@S3_AMONG_SLOW
def test_again_it_does_nothing_and_says_so(prompts: Path, store_uri: str) -> None:
    first = run(job(prompts, store_uri), NoProgress(), Stop())
    before, progress = _objects(first.uri), RecordedProgress()
    again = run(job(prompts, store_uri), progress, Stop())
    assert again.before
    assert (again.uri, again.summary) == (first.uri, first.summary)
    assert (progress.total, progress.drawn_images) == (0, 0)
    assert _objects(first.uri) == before


@S3_AMONG_SLOW
def test_it_resumes_with_the_missing_part_and_ends_with_the_same_images(
    prompts: Path, store_uri: str
) -> None:
    first = run(job(prompts, store_uri), NoProgress(), Stop())
    store, before, progress = open_store(first.uri), _objects(first.uri), RecordedProgress()
    for name in (part_key(0, 1), commit_key(0), SUCCESS_KEY):
        store.remove(name)
    again = run(job(prompts, store_uri), progress, Stop())
    assert not again.before
    assert (progress.existing_images, progress.drawn_images) == (6, 4)
    after = _objects(first.uri)
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} <= TIMED - {"plan.json"}


def test_night_with_nothing_new_loads_no_model_and_takes_no_time(
    prompts: Path, tmp_path: Path
) -> None:
    output = str(tmp_path / "out")
    run(job(prompts, output))
    progress = RecordedProgress()
    lines: list[str] = []
    done = run(
        job(prompts, output, skip_existing=True),
        progress,
        planned=lambda result, _: lines.append(format_plan(result)),
    )
    assert "10 already in earlier runs" in lines[0]
    assert "hours" not in lines[0]
    assert (done.summary.images, done.summary.existing_images) == (0, 10)
    assert (done.summary.device_seconds, progress.events) == (0, [])
    assert "nothing new to generate, 10 images are in earlier runs already." in format_run(done)


@pytest.mark.slow
def test_disk_and_object_store_hold_the_same_dataset(
    prompts: Path, tmp_path: Path, s3_bucket: str
) -> None:
    here = run(job(prompts, str(tmp_path / "out")), NoProgress(), Stop())
    there = run(job(prompts, f"{s3_bucket}/out"), NoProgress(), Stop())
    assert manifest_of(here.uri).equals(manifest_of(there.uri))
    one, other = _objects(here.uri), _objects(there.uri)
    assert one.keys() == other.keys()
    assert {name for name in one if one[name] != other[name]} <= TIMED


def test_a_run_that_was_stopped_resumes(prompts: Path, tmp_path: Path) -> None:
    stop = Stop()
    with pytest.raises(TryAgain, match=r"was stopped with \d of 10 images left"):
        run(job(prompts, str(tmp_path / "out")), RecordedProgress(then=stop.request), stop)
    progress = RecordedProgress()
    done = run(job(prompts, str(tmp_path / "out")), progress, Stop())
    assert progress.existing_images >= 4
    assert progress.existing_images + progress.drawn_images == 10
    assert done.summary.ok == 10


def test_a_shard_whose_images_fail_does_not_keep_the_others_from_being_made(tmp_path: Path) -> None:
    rows = [{**row, **(UNDRAWABLE if place < 8 else DRAWABLE)} for place, row in enumerate(ROWS)]
    prompts = write_prompts(tmp_path / "prompts.parquet", rows)
    progress = RecordedProgress()
    with pytest.raises(
        Incomplete,
        match=r"8 of 10 images are not ok: 8 failed \(ValueError: The combination of ",
    ):
        run(job(prompts, str(tmp_path / "out")), progress, Stop())
    assert progress.drawn_images == 10


@pytest.mark.slow
def test_two_processes_of_which_one_is_killed_make_the_bytes_of_one(tmp_path: Path) -> None:
    rows = [{"prompt": f"a red circle number {place}"} for place in range(20)]
    prompts = write_prompts(tmp_path / "prompts.parquet", rows)
    small = {"model": {"id": "bundled:shapes", "dtype": "float32"}, "batch": {"images": 2}}
    sizes = {"part": {"images": 2}, "shard": {"images": 12}, "run_id": "run"}
    alone = run(job(prompts, str(tmp_path / "alone"), **small, **sizes))

    killed = False

    def kill_once() -> None:
        nonlocal killed
        if not killed:
            _kill_a_worker()
            killed = True

    progress = RecordedProgress(then=kill_once)
    together = run(job(prompts, str(tmp_path / "together"), **small, **sizes), progress, gpus=2)

    assert killed
    assert together.summary.ok == 20
    assert progress.existing_images + progress.drawn_images == 20
    expected = _objects(alone.uri)
    objects = _objects(together.uri)
    assert objects.keys() == expected.keys()
    assert {name for name in expected if objects[name] != expected[name]} <= TIMED


def _kill_a_worker() -> None:
    """Kill one of the worker processes of this process."""
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            if b"generate.workers" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                return
    pytest.fail("there is no worker to kill")
