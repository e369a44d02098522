from contextlib import closing
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.draft import PlanDraft
from imagekiln.steps.plan.input_files import gather_sources
from tests.jobs import job


def _draft(folder: Path, asked: Job) -> PlanDraft:
    (folder / "spool").mkdir()
    return PlanDraft(
        asked, gather_sources(asked.prompt_patterns, folder / "spool"), folder / "spool"
    )


def test_draft_counts_what_became_of_every_row(tmp_path: Path) -> None:
    columns = {
        "prompt": ["a " * 50, "b", None, "b", "c"],
        "seed": [1, 1, 1, 1, 1],
        "images": [2, 1, 1, 1, 1],
    }
    with closing(_draft(tmp_path, job(tmp_path, columns, limits={"rejected_share": 0.5}))) as draft:
        counts = draft.counts
        assert draft.input.rows == 5
    assert (
        counts.rejected_rows,
        counts.images,
        counts.duplicate_images,
        counts.truncated_prompts,
    ) == (1, 4, 1, 2)


def test_shards_come_in_the_sizes_of_the_cut_and_hold_every_image_once(tmp_path: Path) -> None:
    columns = {"prompt": [f"p{n}" for n in range(100)], "steps": [2, 3] * 50, "x": [*range(100)]}
    asked = job(
        tmp_path,
        columns,
        carry=["x"],
        batch={"images": 4},
        part={"images": 8},
        shard={"images": 24},
    )
    with closing(_draft(tmp_path, asked)) as draft:
        shards = [*draft.iter_shards()]
        assert (
            tuple(shard.num_rows for shard in shards)
            == draft.sharding.shard_images
            == (24, 24, 24, 24, 4)
        )
    assert sorted(row for shard in shards for row in shard["row"].to_pylist()) == [*range(100)]
    assert all(shard["x"] == shard["row"] for shard in shards)


def test_nothing_is_written_but_working_files(tmp_path: Path) -> None:
    asked = job(tmp_path, {"prompt": ["a"]})
    with closing(_draft(tmp_path, asked)):
        assert not (tmp_path / "out").exists()


def test_draft_that_is_refused_says_why(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="1 of 1 rows are refused"):
        _draft(tmp_path, job(tmp_path, {"prompt": [" "]}))
