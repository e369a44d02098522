"""The steps of a run on a disk that is full, at whichever write: the same step finishes it."""

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.export.step import export
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.runs.formats import format_of, recover_parts
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import TURNS_FOLDER
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.storage import open_store
from tests import jobs, runs
from tests.mounts import fill, small_disk

DISK_KIBIBYTES = 8192
PAGE_KIBIBYTES = 4  # what a disk in memory takes at least for a file
PROMPTS = [f"a red circle number {place}" for place in range(10)]
FAILED = 3
FORGOTTEN = "number 5"
LEFT_BEHIND = "images/00009-0000.parquet"


def list_steps(output: Path) -> dict[str, Callable[[], object]]:
    """What writes to a run after its parts, in order."""
    run = str(output / "run")

    selection = ForgetSelection(prompt_parts=(FORGOTTEN,))
    return {
        "aggregate": lambda: aggregate(run),
        "retry": lambda: make_round(run),
        "aggregate round": lambda: aggregate(run),
        "export": lambda: export(run, str(output.parent / "export")),
        "forget": lambda: forget(run, selection, [str(output.parent / "export")], remove=True),
        "gc": lambda: gc(str(output), -1, remove=True),
    }


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["parquet", "webdataset", "files"])
def test_step_that_finds_the_disk_full_is_finished_by_the_same_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, format_name: str
) -> None:
    with small_disk(tmp_path / "disk", DISK_KIBIBYTES) as disk:
        output = disk / "out"
        prompts = [{"prompt": prompt} for prompt in PROMPTS]
        settings = {"format": format_name, "limits": {"failed_share": 0.5}}
        run = runs.planned(tmp_path, str(output), prompts, run_id="run", **settings)
        make_missing(run.uri, [FAILED])
        open_store(run.uri).create(LEFT_BEHIND, b"a part of no plan")
        for name, step in list_steps(output).items():
            before = jobs.files(disk)
            step()
            after = jobs.files(disk)
            told = [
                is_told_and_finished(step, disk, before, after, kibibytes, caplog)
                for kibibytes in range(0, DISK_KIBIBYTES // 16, PAGE_KIBIBYTES)
            ]
            assert told[0] == (name != "gc"), name  # which makes room
            assert not told[-1], name
        assert not open_store(run.uri).exists(LEFT_BEHIND)


def is_told_and_finished(
    step: Callable[[], object],
    disk: Path,
    before: dict[str, bytes],
    after: dict[str, bytes],
    kibibytes_left: int,
    log: pytest.LogCaptureFixture,
) -> bool:
    """Whether the step says that the disk is full, with so much left; again, it ends as ever."""
    restore(disk, before)
    ballast = fill(disk, kibibytes_left)
    log.clear()
    try:
        step()
        told = log.text  # as where the card of the output alone was not written
    except TryAgain as error:
        told = str(error)
    ballast.unlink()
    if told:
        assert "the disk is full" in told
        step()
    assert lasting(jobs.files(disk)) == lasting(after), told
    return bool(told)


def restore(disk: Path, content: dict[str, bytes]) -> None:
    """Let the disk have these files and no others."""
    for entry in disk.iterdir():
        shutil.rmtree(entry)
    for name, body in content.items():
        path = disk / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def lasting(content: dict[str, bytes]) -> dict[str, bytes]:
    """The objects but those that say whose turn it was: each process leaves one of its own."""
    return {key: body for key, body in content.items() if f"/{TURNS_FOLDER}/" not in key}


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
