from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.plan.draft import PlanDraft, PlanInputs, make_draft
from imagekiln.steps.plan.input_files import read_input_files
from imagekiln.steps.plan.sharding import TuningEntries
from tests.jobs import job


@contextmanager
def _draft(folder: Path, settings: Job) -> Iterator[PlanDraft]:
    scratch = folder / "scratch"
    scratch.mkdir()
    files = read_input_files(settings, scratch)
    inputs = PlanInputs(settings, resolve_model(settings), files, TuningEntries())
    with make_draft(inputs, scratch) as draft:
        yield draft


def test_draft_counts_what_became_of_every_row(tmp_path: Path) -> None:
    columns = {
        "prompt": ["a " * 50, "b", None, "b", "c"],
        "seed": [1, 1, 1, 1, 1],
        "images": [2, 1, 1, 1, 1],
    }
    with _draft(tmp_path, job(tmp_path, columns, limits={"rejected_share": 0.5})) as draft:
        counts = draft.counts
        assert draft.input.rows == 5
    assert (counts.rejected_rows, counts.images) == (1, 4)
    assert (counts.duplicate_images, counts.truncated_prompts) == (1, 1)


def test_shards_come_in_the_sizes_of_the_cut_and_hold_every_image_once(tmp_path: Path) -> None:
    columns = {"prompt": [f"p{n}" for n in range(100)], "steps": [2, 3] * 50, "x": [*range(100)]}
    settings = job(
        tmp_path,
        columns,
        carry=["x"],
        batch={"images": 4},
        part={"images": 8},
        shard={"images": 24},
    )
    with _draft(tmp_path, settings) as draft:
        shards = [*draft.iter_shards()]
        sizes = tuple(shard.num_rows for shard in shards)
        assert sizes == draft.sharding.shard_images == (24, 24, 24, 24, 4)
    assert sorted(row for shard in shards for row in shard["input_row"].to_pylist()) == [
        *range(100)
    ]
    assert all(shard["x"] == shard["input_row"] for shard in shards)


def test_nothing_is_written_but_working_files(tmp_path: Path) -> None:
    settings = job(tmp_path, {"prompt": ["a"]})
    with _draft(tmp_path, settings):
        assert not (tmp_path / "out").exists()


def test_draft_that_is_refused_says_why(tmp_path: Path) -> None:
    settings = job(tmp_path, {"prompt": [" "]})
    with pytest.raises(BadInput, match="1 of 1 row was rejected"), _draft(tmp_path, settings):
        pass


def test_draft_that_is_refused_leaves_no_file_open(tmp_path: Path) -> None:
    settings = job(tmp_path, {"prompt": [" "]})
    with pytest.raises(BadInput), _draft(tmp_path, settings):
        pass
    open_files = {path.readlink() for path in Path("/proc/self/fd").glob("*") if path.is_symlink()}
    assert not [path for path in open_files if path.is_relative_to(tmp_path)]
