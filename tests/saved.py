"""Finished runs of each release, which later ones must read: tests/saved_runs/VERSION.tar.xz.

Before a release, `python -m tests.saved` saves one of this version: six tiny images in one shard,
of which a round of `retry` mended one and left another as failed, in the format `parquet`.
"""

import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from imagekiln.steps.aggregate import step as aggregate_step
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.protocol import make_round, work, write_no_report

FOLDER = Path(__file__).parent / "saved_runs"
SAVED_RUNS = sorted(FOLDER.glob("*.tar.xz"))
RUN_ID = "saved"
OUTPUT = "out"
PROMPTS = (
    "a circle",
    "a square that fails at first",
    "a star",
    "a cross that always breaks",
    "a ring",
    "a line",
)


def make_saved_run() -> None:
    """Make the run in the current folder, whose name is then in none of its objects."""
    job = jobs.job(
        Path(),
        {"prompt": PROMPTS},
        name="saved",
        run_id=RUN_ID,
        defaults={"steps": 1, "width": 64, "height": 64, "seed": 7},
        limits={"failed_share": 0.4},
        batch={"images": 1},
        part={"images": 3},
        device="cpu",
        threads=1,
    )
    run = make_plan(job)
    work(run.uri, 0)
    aggregate(run.uri)
    retry_round = plan_next_round(open_store(run.uri), run.plan)
    assert retry_round is not None
    make_round(retry_round)
    aggregate(run.uri)


def unpack(archive: Path, folder: Path) -> str:
    """The URI of a saved run, unpacked into a folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return str(folder / OUTPUT / RUN_ID)


def main() -> None:
    """Save a run of this version."""
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"{version('imagekiln')}.tar.xz"
    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.chdir(scratch)
        patch.setattr(aggregate_step, "write_report", write_no_report)
        make_saved_run()
        with tarfile.open(target, "w:xz") as tar:
            tar.add(OUTPUT)


if __name__ == "__main__":
    main()
