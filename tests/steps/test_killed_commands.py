"""Commands that are killed before any of their writes, or sleep: readers see whole states.

The same command then ends as if nothing had happened, and no file has an image twice.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import datasets
import duckdb
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.dataset.dataset import Dataset, open_dataset
from imagekiln.steps.errors import Incomplete, TryAgain
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.keys import CARD_KEY, REPORT_FOLDER, part_key
from tests.interleaving import Process, frozen, interleaving
from tests.jobs import files
from tests.nights import without_reports
from tests.runs import PROMPTS, fill, not_ok, planned
from tests.scenarios import lasting, make_retry

FAILED = 3
FORGOTTEN = ForgetSelection(ids=("row-1", "row-6"))  # in two parts
SIZES = {"batch": {"images": 2}, "part": {"images": 2}, "shard": {"images": 4}}
Images = dict[str, str] | None  # the hash of each by its id; None before there is a state


@dataclass(frozen=True, slots=True)
class Command:
    """What is done to a run, and whether the run is aggregated before."""

    work: Callable[[str], object]
    is_aggregated: bool = True


def retry(uri: str) -> None:
    """Make what has failed again, with noise in place of a model."""
    make_retry(uri)
    aggregate(uri)


COMMANDS = {
    "aggregate": Command(aggregate, is_aggregated=False),
    "retry": Command(retry),
    "forget": Command(lambda uri: forget(uri, FORGOTTEN, remove=True)),
}


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Path]:
    """A folder for a run, whose report is not made."""
    with without_reports(), interleaving(tmp_path, lambda *_: None):
        yield tmp_path / "out"


def make_run(output: Path, scratch: Path, command: Command) -> str:
    """A run as the command finds it."""
    run = planned(
        scratch, str(output), PROMPTS[:8], run_id="run", limits={"failed_share": 0.5}, **SIZES
    )
    fill(run, {FAILED: not_ok(0)})
    if command.is_aggregated:
        aggregate(run.uri)
    return run.uri


def read(dataset: Dataset) -> Images:
    """The images that a dataset gives."""
    found = {}
    for batch in dataset.to_batches():
        for row in batch.to_pylist():
            assert row["image_id"] not in found
            found[row["image_id"]] = hashlib.sha256(row["image"]["bytes"]).hexdigest()
    return found


def read_anew(uri: str) -> Images:
    """The images that a reader gets who comes now."""
    try:
        return read(open_dataset(uri, ["image_id", "image"]))
    except Incomplete:
        return None


@pytest.mark.parametrize("name", COMMANDS)
def test_readers_see_whole_states_whatever_command_is_killed_and_repeated(
    output: Path, tmp_path: Path, name: str
) -> None:
    command = COMMANDS[name]
    uri = make_run(output, tmp_path, command)
    base, before = tmp_path / "base", read_anew(uri)
    shutil.copytree(output, base)
    command.work(uri)
    expected, after = lasting(files(output)), read_anew(uri)
    assert before != after

    is_done = False
    writes = 0
    while not is_done:
        shutil.rmtree(output)
        shutil.copytree(base, output)
        with suppress(Incomplete):
            beside = open_dataset(uri, ["image_id", "image"])
        process = Process(name, lambda: command.work(uri))
        process.step_to_write(writes)
        is_done = process.is_done
        process.kill(torn=True)
        assert process.error is None
        assert read_anew(uri) in (before, after)
        if before is not None:
            with suppress(TryAgain):
                assert read(beside) in (before, after)

        command.work(uri)
        assert lasting(without_torn(files(output))) == expected
        assert read_anew(uri) == after
        require_each_image_once(uri, after)
        writes += 1
    assert verify(uri).ok == len(after or ())
    loaded = datasets.load_dataset(  # type: ignore[attr-defined]  # it is there
        "parquet",
        data_files=f"{uri}/images/*.parquet",
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert sorted(loaded["image_id"]) == sorted(after or ())
    assert writes > 5


def without_torn(content: dict[str, bytes]) -> dict[str, bytes]:
    """The files but those that were being written when a process was killed."""
    return {name: body for name, body in content.items() if "/.writing-" not in name}


def require_each_image_once(uri: str, images: Images) -> None:
    """Fail unless DuckDB finds each image once in the parts, without looking at commits."""
    with duckdb.connect() as database:
        rows = database.execute(f"SELECT image_id FROM '{uri}/images/*.parquet'").fetchall()
    assert sorted(image_id for (image_id,) in rows) == sorted(images or ())


@pytest.mark.parametrize("access", ["open", "replace"], ids=["before reading", "before writing"])
def test_a_report_that_sleeps_shows_no_image_that_is_taken_down_meanwhile(
    tmp_path: Path, access: str
) -> None:
    output = tmp_path / "out"
    with interleaving(tmp_path, lambda *_: None):
        uri = make_run(output, tmp_path, COMMANDS["forget"])
        name = part_key(0, 0) if access == "open" else CARD_KEY
        sleeping = frozen(lambda: aggregate(uri), access, name)
        forget(uri, FORGOTTEN, remove=True)
        reported = files(output / "run" / REPORT_FOLDER)
        sleeping.finish()
        assert sleeping.error is None
        assert files(output / "run" / REPORT_FOLDER) == reported
