"""The steps of a run on a disk that is full, at whichever write: the same step finishes it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.export.step import export
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from tests import jobs, runs
from tests.mounts import fill, small_disk
from tests.scenarios import lasting, make_missing, make_retry

DISK_KIBIBYTES = 8192
PAGE_KIBIBYTES = 4  # what a disk in memory takes at least for a file
PROMPTS = [f"a red circle number {place}" for place in range(10)]
FAILED = 3
FORGOTTEN = "number 5"


def list_steps(output: Path) -> dict[str, Callable[[], object]]:
    """What writes to a run after its parts, in order."""
    run = str(output / "run")

    selection = ForgetSelection(prompt_parts=(FORGOTTEN,))
    return {
        "aggregate": lambda: aggregate(run),
        "retry": lambda: make_retry(run),
        "aggregate retry": lambda: aggregate(run),
        "export": lambda: export(run, str(output.parent / "export")),
        "forget": lambda: forget(run, selection, [str(output.parent / "export")], remove=True),
    }


@pytest.mark.slow
def test_step_that_finds_the_disk_full_is_finished_by_the_same_step(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_KIBIBYTES) as disk:
        output = disk / "out"
        prompts = [{"prompt": prompt} for prompt in PROMPTS]
        limits = {"failed_share": 0.5}
        run = runs.planned(tmp_path, str(output), prompts, run_id="run", limits=limits)
        make_missing(run.uri, [FAILED])
        for name, step in list_steps(output).items():
            before = jobs.files(disk)
            step()
            after = jobs.files(disk)
            told = [
                is_told_and_finished(step, disk, before, after, kibibytes)
                for kibibytes in range(0, DISK_KIBIBYTES // 16, PAGE_KIBIBYTES)
            ]
            assert told[0], name
            assert not told[-1], name


def is_told_and_finished(
    step: Callable[[], object],
    disk: Path,
    before: dict[str, bytes],
    after: dict[str, bytes],
    kibibytes_left: int,
) -> bool:
    """Whether the step says that the disk is full, with so much left; again, it ends as ever."""
    restore(disk, before)
    ballast = fill(disk, kibibytes_left)
    try:
        step()
        told = ""
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
