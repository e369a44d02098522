"""When a schedule would have fired: what a backfill submits."""

from datetime import date

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.schedules import firings


def moments(cron: str, zone: str, first: date, last: date) -> list[str]:
    return [at.isoformat() for at in firings(cron, zone, first, last)]


def test_days_are_those_of_the_schedules_time_zone_both_ends_included() -> None:
    assert moments("30 1 * * *", "Europe/Berlin", date(2026, 11, 1), date(2026, 11, 2)) == [
        "2026-11-01T00:30:00+00:00",
        "2026-11-02T00:30:00+00:00",
    ]


def test_midnight_belongs_to_the_day_it_begins() -> None:
    assert moments("0 0 * * *", "UTC", date(2026, 11, 1), date(2026, 11, 1)) == ["2026-11-01T00:00:00+00:00"]


def test_clocks_that_change_move_the_moment() -> None:
    found = moments("30 4 * * *", "Europe/Berlin", date(2026, 10, 24), date(2026, 10, 25))
    assert found == ["2026-10-24T02:30:00+00:00", "2026-10-25T03:30:00+00:00"]


@pytest.mark.parametrize("cron", ["", "every night", "61 * * * *", "* * *"])
def test_text_that_is_no_schedule_is_refused(cron: str) -> None:
    with pytest.raises(BadInput, match="Write minute, hour"):
        moments(cron, "UTC", date(2026, 11, 1), date(2026, 11, 1))


def test_unknown_time_zone_is_refused() -> None:
    with pytest.raises(BadInput, match="time zone"):
        moments("0 0 * * *", "Mars/Olympus", date(2026, 11, 1), date(2026, 11, 1))
