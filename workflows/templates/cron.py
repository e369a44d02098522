"""Fire times of schedules, and the check that Argo can parse them.

Argo accepts any string as a schedule, and never fires one that it cannot parse.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice

from cronsim import CronSim, CronSimError

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import parse_time_zone

EVERY_DAY = re.compile(r"\*(/0*1)?")
# Five fields without L, W and #; Sunday is 0.
NUMBER = r"(\d+|[a-z]{3})"
WEEKDAY = r"([0-6]|[a-z]{3})"
ITEMS = r"(\*|{0}(-{0})?)(/\d+)?(,(\*|{0}(-{0})?)(/\d+)?)*"
FIELDS = (*[ITEMS.replace("{0}", NUMBER)] * 4, ITEMS.replace("{0}", WEEKDAY))
CRON = re.compile(r"\s+".join(FIELDS), re.IGNORECASE)


def check_cron(cron: str) -> None:
    """Raise BadInput if Argo could not parse the schedule."""
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError as error:
        raise _cron_error(cron, str(error)) from error
    if not CRON.fullmatch(cron.strip()):
        raise _cron_error(cron, "Argo does not read it")


def fire_times(cron: str, timezone: str, first: date, last: date) -> Iterator[datetime]:
    """Yield the fire times of a schedule, in UTC.

    The first and last day are inclusive, in the schedule's time zone.
    """
    zone = parse_time_zone(timezone)
    check_cron(cron)
    start = datetime.combine(first, time(), zone)
    end = datetime.combine(last + timedelta(days=1), time(), zone)
    for moment in _simulate(cron, start - timedelta(seconds=1)):
        if moment >= end:
            return
        yield moment.astimezone(UTC)


def next_fire_time(crons: Iterable[str], timezone: str, after: datetime) -> datetime | None:
    """Return the next fire time of these cron lines, in UTC; None if there is none."""
    start = after.astimezone(parse_time_zone(timezone))
    times: list[datetime] = []
    for cron in crons:
        check_cron(cron)
        times += islice(_simulate(cron, start), 1)
    return min(times).astimezone(UTC) if times else None


def _simulate(cron: str, start: datetime) -> CronSim:
    """Simulate the fire times after `start`.

    A schedule that restricts both days of the month and days of the week fires on either. Argo
    counts a step, such as `*/2`, as a restriction. Debian's cron, which CronSim follows, does
    not if the field starts with a star.
    """
    simulation = CronSim(cron, start)
    _, _, month_days, _, week_days = cron.split()
    items = f"{month_days},{week_days}".split(",")
    simulation.day_and = any(map(EVERY_DAY.fullmatch, items))
    return simulation


def _cron_error(cron: str, why: str) -> BadInput:
    return BadInput(
        f"schedule {cron!r}: {why}. "
        "Write minute, hour, day, month, weekday (0: Sunday): 30 1 * * 0."
    )
