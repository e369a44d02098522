"""The share of failed images that a run accepts, and the command that names it."""

from pathlib import Path

import pytest

from imagekiln.steps.aggregate.acceptance import format_aggregate_command
from imagekiln.steps.job.job import Job
from tests.runs import job, write_prompts


@pytest.fixture
def small(tmp_path: Path) -> Job:
    """A job that accepts 0.25 of its images not being ok."""
    return job(
        write_prompts(tmp_path / "prompts.parquet"),
        str(tmp_path / "out"),
        limits={"failed_share": 0.25},
    )


def test_aggregating_names_what_differs_from_the_job(small: Job) -> None:
    assert format_aggregate_command("run", small, 0.25, ()) == "imagekiln aggregate run"
    command = format_aggregate_command("a run", small, 0.5, ("blank", "own"))
    assert command == "imagekiln aggregate 'a run' --failed-share 0.5 --accept blank --accept own"
