"""Finished runs of each release, which later ones must read: tests/saved_runs/VERSION.tar.xz.

Before a release, `python -m tests.saved` saves one of this version: six tiny images in one shard,
of which a round of `retry` mended one and left another as failed, in the format `parquet`.

FIELDS has what a run of this state has in its objects: `python -m tests.saved --fields` writes it.
"""

import argparse
import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
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
FIELDS = FOLDER / "fields.json"
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


@contextmanager
def making_saved_run() -> Iterator[Path]:
    """The output of a run that is made in a temporary folder."""
    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.chdir(scratch)
        patch.setattr(aggregate_step, "write_report", write_no_report)
        make_saved_run()
        yield Path(OUTPUT)


def list_fields(output: Path) -> dict[str, list[str]]:
    """The fields of each kind of JSON object under an output, and the columns of each table.

    How many there are of a kind does not matter. Settings of the job are left out: an older
    Imagekiln refuses those that it does not know.
    """
    fields: dict[str, list[str]] = {}
    for path in sorted(output.rglob("*")):
        name = re.sub("[0-9]{4,}", "N", path.relative_to(output).as_posix())
        if path.suffix == ".json":
            paths = set(_iter_paths(json.loads(path.read_bytes())))
            fields[name] = sorted(field for field in paths if not field.startswith("job."))
        elif path.suffix == ".parquet":
            fields[name] = [f"{field.name}: {field.type}" for field in pq.read_schema(path)]
    return fields


def _iter_paths(value: object, prefix: str = "") -> Iterator[str]:
    """The path of each field in a JSON document; all entries of a list have the same ones."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{prefix}{name}"
            yield from _iter_paths(inner, f"{prefix}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_paths(inner, prefix)


def main() -> None:
    """Save a run of this version, or what is in its objects."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--fields", action="store_true")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with making_saved_run() as output:
        if arguments.fields:
            FIELDS.write_text(json.dumps(list_fields(output), indent=1) + "\n", encoding="utf-8")
            return
        with tarfile.open(FOLDER / f"{version('imagekiln')}.tar.xz", "w:xz") as tar:
            tar.add(OUTPUT)


if __name__ == "__main__":
    main()
