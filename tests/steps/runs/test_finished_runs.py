"""The finished runs of an output: none is left out since what names it was damaged or lost."""

import shutil
from pathlib import Path

import pytest

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.finished_runs import find_finished_runs
from imagekiln.steps.runs.keys import registry_key
from imagekiln.steps.storage import open_store
from tests.galleries import FileRequest, serving_files
from tests.runs import fill, planned

NIGHTS = ("night-0", "night-1", "night-2")
NAMES_LOST_NIGHT = r"night-1: is a finished run, and no entry in _runs/ names it"


@pytest.fixture
def output(tmp_path: Path) -> str:
    """An output with three nights, of which the last has new images alone."""
    output = str(tmp_path / "out")
    for name in NIGHTS:
        rows = [{"prompt": name}, {"prompt": "each night"}]
        result = planned(tmp_path, output, rows, run_id=name, skip_existing=True)
        fill(result)
        aggregate(result.uri)
    return output


def finished_names(output: str) -> list[str]:
    """The names of the finished runs."""
    return [entry.run_id for entry in find_finished_runs(output)]


@pytest.mark.parametrize("damaged", ["night-9", "night-0", None])
def test_a_run_whose_entry_names_another_or_is_lost_is_told_and_can_be_registered_again(
    output: str, tmp_path: Path, damaged: str | None
) -> None:
    images = imagekiln.dataset(output).count_rows()
    store = open_store(output)
    entry = store.read(registry_key(1))
    if damaged is None:
        store.remove(registry_key(1))
    else:
        store.replace(registry_key(1), entry.replace(b"night-1", damaged.encode()))

    with pytest.raises(BadInput, match=NAMES_LOST_NIGHT):
        imagekiln.dataset(output)
    with pytest.raises(BadInput, match=NAMES_LOST_NIGHT):
        planned(tmp_path, output, run_id="new", skip_existing=True)
    aggregate(f"{output}/night-1")
    assert sorted(finished_names(output)) == list(NIGHTS)
    assert imagekiln.dataset(output).count_rows() == images


def test_all_entries_that_are_lost_are_no_output_without_runs(output: str) -> None:
    shutil.rmtree(Path(output) / "_runs")
    with pytest.raises(BadInput, match="is a finished run, and no entry"):
        imagekiln.dataset(output)


class Unlisted(FileRequest):
    """A web server that lists no folder, as most do."""

    def list_directory(self, _: object) -> None:
        self.send_error(403)


def test_runs_in_a_place_that_cannot_be_listed_are_those_that_entries_name(output: str) -> None:
    with serving_files(Path(output), Unlisted) as server:
        assert finished_names(server.url.rstrip("/")) == list(NIGHTS)


def test_what_is_no_finished_run_of_its_own_needs_no_entry(output: str, tmp_path: Path) -> None:
    planned(tmp_path, output, run_id="unfinished")
    shutil.copytree(f"{output}/night-0", f"{output}/copy")
    imagekiln.export(f"{output}/night-0", f"{output}/export")
    damaged = Path(output, "night-0-damaged")
    shutil.copytree(f"{output}/night-0", damaged)
    (damaged / "plan.json").write_bytes(b"{")
    shutil.rmtree(f"{output}/night-2")
    assert finished_names(output) == ["night-0", "night-1"]
