"""Jobs for a date, as schedules and backfills start them."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptTemplate, RunPrompts

DATE_PLACEHOLDER = re.compile(r"\{date(?::([^{}]+))?\}")
DEFAULT_DATE_FORMAT = "%Y-%m-%d"


def job_for_date(job: Job, at: datetime, zone: ZoneInfo) -> Job:
    """Return the job for a point in time, with its date in place of `{date}` in `prompts`.

    `{date}` becomes 2026-11-21, and `{date:%Y/%m/%d}` is formatted by strftime, both in `zone`.
    Unless the job has a `run_id`, the run id contains the time in UTC, so that the same time gives
    the same run. Local times would be ambiguous when clocks are set back.
    """
    local = at.astimezone(zone)

    def fill_in(places: object) -> object:
        if isinstance(places, tuple):
            return tuple(map(fill_in, places))
        if not isinstance(places, str):
            return places
        return DATE_PLACEHOLDER.sub(
            lambda found: local.strftime(found[1] or DEFAULT_DATE_FORMAT), places
        )

    prompts = job.prompts
    if isinstance(prompts, PromptTemplate | RunPrompts):
        places = {
            name: fill_in(value) for name, value in prompts if name in ("table", "run", "wildcards")
        }
        prompts = prompts.model_copy(update=places)
    run_id = job.run_id or f"{job.name}-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    return job.model_copy(update={"prompts": fill_in(prompts), "run_id": run_id})


def fill_date(job: Job, date: str, timezone: str = "") -> Job:
    """Return the job for an ISO 8601 date, or unchanged if `date` is empty. Raises BadInput."""
    if not date:
        return job
    zone = parse_time_zone(timezone)
    return job_for_date(job, parse_moment(date, zone), zone)


def needs_date(job: Job) -> bool:
    """Return whether the job's prompts contain a `{date}` placeholder."""
    return any(map(DATE_PLACEHOLDER.search, job.prompt_patterns))


def require_date(job: Job) -> Job:
    """Return the job. Raises BadInput if its prompts contain a `{date}` placeholder."""
    for pattern in job.prompt_patterns:
        if DATE_PLACEHOLDER.search(pattern):
            raise BadInput(
                f"{pattern}: needs a date. Add one, such as --date 2026-11-21, "
                'or in Python date="2026-11-21".'
            )
    return job


def parse_moment(text: str, zone: ZoneInfo) -> datetime:
    """Parse an ISO 8601 date or time, by default in `zone`. Raises BadInput."""
    try:
        at = datetime.fromisoformat(text.strip())
        at = at.replace(tzinfo=zone) if at.tzinfo is None else at
        for place in (UTC, zone):  # used by run ids and patterns; the year may overflow
            at.astimezone(place)
    except (ValueError, OverflowError) as error:
        raise BadInput(
            f"date {text!r}: is not an ISO 8601 date. "
            "Write 2026-11-21 or 2026-11-21T01:30:00+00:00."
        ) from error
    return at


def moment_in_utc(date: str, timezone: str) -> str:
    """Normalize a date to ISO 8601 in UTC. Raises BadInput."""
    return parse_moment(date, parse_time_zone(timezone)).astimezone(UTC).isoformat()


def parse_time_zone(name: str) -> ZoneInfo:
    """Return the time zone with an IANA name; UTC if it is empty. Raises BadInput."""
    try:
        return ZoneInfo(name.strip() or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(
            f"time zone {name!r}: does not exist. Write an IANA name, such as Europe/Berlin."
        ) from error
