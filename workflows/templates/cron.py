"""Fire times of schedules, and the check that Argo reads them.

Argo accepts any text as a schedule, and never fires one that it cannot read.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice

from cronsim import CronSim, CronSimError

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import parse_time_zone

CRON_FIELDS = 5
SUNDAY = 0  # and never 7
EVERY_DAY = re.compile(r"\*(/0*1)?")
# No L, W and #, no seconds.
CRON_ITEM = re.compile(r"(\*|(\d+|[a-z]{3})(-(\d+|[a-z]{3}))?)(/\d+)?", re.IGNORECASE)


def check_cron(cron: str) -> None:
    """Raise BadInput if Argo would not read the schedule."""
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError as error:
        raise _cron_error(cron, str(error)) from error

    fields = cron.split()
    if len(fields) != CRON_FIELDS:
        raise _cron_error(cron, "it has seconds")
    for field in fields:
        for item in field.split(","):
            if not CRON_ITEM.fullmatch(item):
                raise _cron_error(cron, f"Argo does not read {item!r}")
    if "7" in re.split(r"[,-]", re.sub(r"/\d+", "", fields[-1])):
        raise _cron_error(cron, f"Sunday is {SUNDAY}")


def fire_times(cron: str, timezone: str, first: date, last: date) -> Iterator[datetime]:
    """Yield when a schedule fires, in UTC.

    From the first day to the last, both included, in the schedule's time zone.
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
    """Return when a schedule of these lines fires next, in UTC; None if never."""
    start = after.astimezone(parse_time_zone(timezone))
    times: list[datetime] = []
    for cron in crons:
        check_cron(cron)
        times += islice(_simulate(cron, start), 1)
    return min(times).astimezone(UTC) if times else None


def _simulate(cron: str, start: datetime) -> CronSim:
    """The fire times after `start`.

    A schedule that restricts days of the month and of the week fires on either. For Argo,
    every other day is such a restriction; for Debian's cron, which is simulated, it has a star.
    """
    simulation = CronSim(cron, start)
    _, _, month_days, _, week_days = cron.split()
    items = f"{month_days},{week_days}".split(",")
    simulation.day_and = any(map(EVERY_DAY.fullmatch, items))
    return simulation


def _cron_error(cron: str, why: str) -> BadInput:
    return BadInput(
        f"schedule {cron!r}: {why}. Write minute, hour, day, month and weekday: 30 1 * * *."
    )
