"""When a schedule fires, and which schedules Argo reads.

Argo accepts any text as a schedule, and never fires one that it cannot read.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import parse_time_zone

CRON_FIELDS = 5
YEAR = timedelta(days=366)
SUNDAY = 0  # and never 7
EVERY_DAY = re.compile(r"\*(/0*1)?")
# No L, W and #, no seconds.
CRON_ITEM = re.compile(r"(\*|(\d+|[a-z]{3})(-(\d+|[a-z]{3}))?)(/\d+)?", re.IGNORECASE)


def check_cron(cron: str) -> None:
    """Raise BadInput where Argo would not read the schedule."""
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
    """When a schedule fires, in UTC.

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
    """When a schedule of these lines fires next, in UTC; None where no line ever does again."""
    start = after.astimezone(parse_time_zone(timezone))
    times: list[datetime] = []
    for cron in crons:
        check_cron(cron)
        times += islice(_simulate(cron, start), 1)
    return min(times).astimezone(UTC) if times else None


def describe_clock_changes(crons: Iterable[str], timezone: str, after: datetime) -> str:
    """The days of a year on which clocks change at a time of the schedule; empty for none.

    At such a time, Argo fires never, where it does not exist, or twice. Every hour is no such time.
    """
    zone = parse_time_zone(timezone)
    start = after.astimezone(zone).replace(tzinfo=None)
    days: set[date] = set()
    for cron in crons:
        if not cron.split()[1].startswith("*"):
            times = takewhile(lambda time: time < start + YEAR, _simulate(cron, start))
            days.update(time.date() for time in times if _is_shifted(time, zone))
    if not days:
        return ""
    return (
        f"Clocks in {zone.key} change at the time of the schedule on "
        f"{' and '.join(map(str, sorted(days)))}: Argo skips a time that does not exist, and "
        "starts two runs at one that occurs twice. Choose another hour, or times in UTC."
    )


def _is_shifted(time: datetime, zone: ZoneInfo) -> bool:
    """Whether a local time occurs twice, or not at all."""
    first, second = (time.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return first != second


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
