"""When a schedule fires, and what Argo would not read as one."""

from datetime import UTC, date, datetime

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.templates.cron import (
    check_cron,
    fire_times,
    next_fire_time,
)


def moments(cron: str, zone: str, first: date, last: date) -> list[str]:
    return [at.isoformat() for at in fire_times(cron, zone, first, last)]


def test_days_are_those_of_the_schedules_time_zone_both_ends_included() -> None:
    assert moments("30 1 * * *", "Europe/Berlin", date(2026, 11, 1), date(2026, 11, 2)) == [
        "2026-11-01T00:30:00+00:00",
        "2026-11-02T00:30:00+00:00",
    ]


def test_next_moment_is_the_first_of_all_lines_that_is_still_to_come() -> None:
    lines = ("30 1 * * *", "0 13 * * 6")
    saturday = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)  # when the first line fires in Berlin
    assert next_fire_time(lines, "Europe/Berlin", saturday) == datetime(
        2026, 11, 21, 12, tzinfo=UTC
    )
    assert next_fire_time((), "UTC", saturday) is None


# By robfig/cron 3.0.1, which Argo uses. A star with a step is no star, unless it takes every day.
@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("0 1 */10 * 1", [1, 2, 9, 11, 16, 21, 23, 30]),
        ("0 1 13 * */6", [1, 7, 8, 13, 14, 15, 21, 22, 28, 29]),
        ("0 1 */1 * 1", [2, 9, 16, 23, 30]),
        ("0 1 5,* * 1", [2, 9, 16, 23, 30]),
        ("0 1 */10 * *", [1, 11, 21]),
    ],
)
def test_days_of_the_month_and_of_the_week_are_combined_as_argo_does(
    cron: str, days: list[int]
) -> None:
    times = fire_times(cron, "UTC", date(2026, 11, 1), date(2026, 11, 30))
    assert [time.day for time in times] == days


# Argo takes the last six without a word, and never fires them.
@pytest.mark.parametrize(
    "cron",
    ["", "every night", "61 * * * *", "* * *",
     "0 30 1 * * *", "30 1 * * 7", "30 1 * * 5-7", "30 1 L * *", "30 1 * * 5#2", "30 1 * * 5L"],
)  # fmt: skip
def test_text_that_is_no_schedule_is_refused(cron: str) -> None:
    with pytest.raises(BadInput, match="Write minute, hour"):
        moments(cron, "UTC", date(2026, 11, 1), date(2026, 11, 1))


@pytest.mark.parametrize(
    "cron", ["*/15 0-6,22 1,15 jan-MAR *", "30 1 * * mon-fri", "7 7 7 7 0", "0 1/7 * * 1-5/2"]
)
def test_schedules_that_argo_reads_are_taken(cron: str) -> None:
    check_cron(cron)


def test_unknown_time_zone_is_refused() -> None:
    with pytest.raises(BadInput, match="time zone"):
        moments("0 0 * * *", "Mars/Olympus", date(2026, 11, 1), date(2026, 11, 1))
