"""Jobs for a date: which run, and which prompts."""

from zoneinfo import ZoneInfo

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import job_for_date, parse_moment, parse_time_zone, require_date
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.job.prompts import RunPrompts

BERLIN = ZoneInfo("Europe/Berlin")
JOB = Job(
    name="a", prompts="s3://p/{date}.parquet", output="o", model=ModelSettings(id="bundled:shapes")
)


def test_date_is_that_of_the_time_zone() -> None:
    assert (
        job_for_date(JOB, parse_moment("2026-11-20T23:30:00Z", BERLIN), BERLIN).prompts
        == "s3://p/2026-11-21.parquet"
    )


def test_date_comes_in_any_format_and_in_every_pattern() -> None:
    job = JOB.model_copy(update={"prompts": ("{date:%Y/%m/%d}/{date}", "{other}")})
    assert job_for_date(job, parse_moment("2026-11-21", BERLIN), BERLIN).prompts == (
        "2026/11/21/2026-11-21",
        "{other}",
    )


def test_date_names_the_run_whose_images_are_prompts() -> None:
    run = RunPrompts(run="s3://p/night-{date}")
    job = JOB.model_copy(update={"prompts": run})
    with pytest.raises(BadInput, match="needs a date"):
        require_date(job)
    filled = job_for_date(job, parse_moment("2026-11-21", BERLIN), BERLIN)
    assert filled.prompts == RunPrompts(run="s3://p/night-2026-11-21")


def test_clock_that_is_set_back_names_two_runs() -> None:
    run_ids = {
        job_for_date(JOB, parse_moment(f"2026-10-25T0{hour}:30:00Z", BERLIN), BERLIN).run_id
        for hour in (0, 1)
    }
    assert run_ids == {"a-20261025T003000Z", "a-20261025T013000Z"}


def test_job_that_needs_a_date_is_refused_without_one() -> None:
    with pytest.raises(BadInput, match="needs a date"):
        require_date(JOB)
    filled = job_for_date(JOB, parse_moment("2026-11-21", BERLIN), BERLIN)
    assert require_date(filled) is filled


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-13-01",
        "{{workflow.scheduledTime}}",
        "0001-01-01T00:00:00+14:00",
        "0001-01-01",
        "9999-12-31T23:30:00Z",
    ],
)
def test_text_that_is_not_a_date_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not an ISO 8601 date"):
        parse_moment(text, BERLIN)


@pytest.mark.parametrize("name", ["Mars/Phobos", "../etc/passwd", "/etc/passwd", "a\0b"])
def test_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"does not exist\. Write an IANA name"):
        parse_time_zone(name)
