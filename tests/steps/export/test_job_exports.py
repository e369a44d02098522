"""The exports that a job asks for: they grow once a run is ok, and after a retry."""

from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.export.step import export_run
from imagekiln.steps.job.job import Job
from imagekiln.steps.local import run
from imagekiln.steps.plan.step import make_plan
from imagekiln.workflows.cli.text import format_run
from tests.runs import PROMPTS, fill, job, not_ok, write_prompts


def exporting(folder: Path, rows: int = 4, **changes: object) -> Job:
    """A job whose output is exported as WebDataset and as pictures."""
    prompts = write_prompts(folder / "prompts.parquet", PROMPTS[:rows])
    copies = [
        {"to": f"{folder}/tars", "format": "webdataset", "file_size": "5MB"},
        {"to": f"{folder}/pictures/", "format": "files", "columns": ["seed"]},
    ]
    settings = {"run_id": "night", "export": copies} | changes
    return job(prompts, str(folder / "out"), **settings)


def test_a_finished_run_is_exported_as_its_job_asks(tmp_path: Path) -> None:
    result = run(exporting(tmp_path))
    places = [str(tmp_path / "tars"), str(tmp_path / "pictures")]
    assert [(each.uri, each.images) for each in result.exports] == [(place, 4) for place in places]
    assert len([*(tmp_path / "pictures/data").glob("*/*.png")]) == 4
    assert f"Export:  {places[1]}" in format_run(result)
    again = run(exporting(tmp_path))
    assert [each.unchanged for each in again.exports] == [4, 4]


def test_copies_are_no_part_of_the_plan(tmp_path: Path) -> None:
    first = make_plan(exporting(tmp_path, run_id=None))
    again = make_plan(exporting(tmp_path, run_id=None, export=[]))
    assert (again.uri, again.plan) == (first.uri, first.plan)


def test_a_night_without_images_has_no_copy(tmp_path: Path) -> None:
    settings = exporting(tmp_path, limits={"failed_share": 1})
    planned = make_plan(settings)
    fill(planned, dict(enumerate(map(not_ok, range(4)))))
    aggregate(planned.uri)
    assert export_run(settings, planned.uri) == ()


@pytest.mark.parametrize(
    ("copies", "problem"),
    [
        ([{"to": "out/"}], r"has export\[0\]\.to and output in one folder"),
        ([{"to": "a"}, {"to": "a/"}], r"has export\[1\]\.to and export\[0\]\.to in one folder"),
        ([{"to": "a", "format": "files", "file_size": 10**7}], "has a file for each image"),
        ([{"to": "a", "file_size": "1 kB"}], "greater than or equal to 1000000"),
    ],
)
def test_copies_that_cannot_be_made_are_refused(
    copies: list[dict[str, object]], problem: str
) -> None:
    values = {"name": "a", "prompts": "a.csv", "output": "out", "model": {"id": "bundled:shapes"}}
    with pytest.raises(ValueError, match=problem):
        Job.model_validate({**values, "export": copies})
