"""A job for one date: what a schedule fires, and what fills in a date that was missed."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job

DATE_PLACEHOLDER = re.compile(r"\{date(?::([^{}]+))?\}")
DEFAULT_DATE_FORMAT = "%Y-%m-%d"


def job_for_date(job: Job, at: datetime, zone: ZoneInfo) -> Job:
    """The job at a moment: the same moment gives the same run, and `{date}` in the prompts' places is its date.

    `{date}` reads 2026-11-21, `{date:%Y/%m/%d}` as strftime has it, both in `zone`. The run's id has the moment in
    UTC, since a clock that is set back shows a local time twice; a run id of the job's own stays.
    """
    local = at.astimezone(zone)
    places = tuple(
        DATE_PLACEHOLDER.sub(lambda found: local.strftime(found[1] or DEFAULT_DATE_FORMAT), place)
        for place in job.prompt_patterns
    )
    run_id = job.run_id or f"{job.name}-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    return job.model_copy(
        update={"prompts": places if len(places) > 1 else places[0], "run_id": run_id}
    )


def require_date(job: Job) -> Job:
    """The job, unless its prompts need a date. Raises BadInput."""
    for place in job.prompt_patterns:
        if DATE_PLACEHOLDER.search(place):
            raise BadInput(f"{place}: needs a date. Give one with --date, such as 2026-11-21.")
    return job


def parse_moment(text: str, zone: ZoneInfo) -> datetime:
    """The moment that a text in ISO 8601 names; without an offset, as `zone` has it. Raises BadInput."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise BadInput(
            f"date {text!r}: is no date. Write 2026-11-21 or 2026-11-21T01:30:00+00:00."
        ) from error
    return at.replace(tzinfo=zone) if at.tzinfo is None else at


def parse_time_zone(name: str) -> ZoneInfo:
    """The time zone of that name. Raises BadInput."""
    try:
        return ZoneInfo(name.strip() or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(
            f"time zone {name!r}: is not known. Write one such as Europe/Berlin."
        ) from error
