"""A job on a schedule: registered, suspended, resumed, and filled in for days that have passed."""

from contextlib import suppress
from datetime import UTC, date, datetime
from heapq import merge
from itertools import islice, takewhile
from typing import cast

from imagekiln.steps.dated import time_zone
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job import Job
from imagekiln.workflows import client, gpu_profiles, status, submission
from imagekiln.workflows.argo import Argo, connect, identity
from imagekiln.workflows.connection import Json
from imagekiln.workflows.cron import firings
from imagekiln.workflows.status import FAILED, Status

MOST_FIRINGS = 400  # of one backfill: a year of nights


def schedule(job: Job, cron: str, timezone: str = "UTC", argo: Argo | None = None) -> str:
    """Run the job on a schedule, such as `30 1 * * *`; give its name. Done again, it changes the schedule."""
    argo = argo or connect()
    time_zone(timezone)
    made = submission.cron_workflow(job, gpu_profiles.load(job.cluster.profile), (cron,), timezone)
    client.register(job, argo)
    argo.apply(made)
    return identity(made)[2]


def suspend(name: str, namespace: str, argo: Argo | None = None) -> None:
    """Let a schedule rest: nothing is fired."""
    (argo or connect()).suspend(namespace, name, suspended=True)


def resume(name: str, namespace: str, argo: Argo | None = None) -> None:
    """Let a schedule go on. What it would have fired last, up to six hours ago, is caught up with."""
    (argo or connect()).suspend(namespace, name, suspended=False)


def backfill(job: Job, first: date, last: date, argo: Argo | None = None, *, retry: bool = False) -> list[Status]:
    """Start what the job's schedule would have fired from the first day to the last, as far as that has passed.

    A firing that has been is the same run, so that nothing is made twice. Raises Missing where there is no schedule,
    BadInput where it has not fired, or too often. With `retry`, what ended failed, blank or missing is made again.
    """
    argo = argo or connect()
    crons, zone = _registered(job, argo)
    now, days = datetime.now(UTC), f"from {first} to {last}"
    # Planned before its time, a run would freeze prompts that are still being written.
    due = takewhile(lambda at: at <= now, merge(*(firings(cron, zone, first, last) for cron in crons)))
    found = list(islice(dict.fromkeys(islice(due, MOST_FIRINGS * len(crons) + 1)), MOST_FIRINGS + 1))
    if not found:
        raise BadInput(f"{submission.cron_name(job)}: has not fired {days}. Name days that have passed.")
    if len(found) > MOST_FIRINGS:
        raise BadInput(f"{submission.cron_name(job)}: fired more than {MOST_FIRINGS} times {days}. Name fewer days.")
    return [
        (None if retry else _fired(job, at, argo)) or client.submit(job, at.isoformat(), zone, argo, retry=retry)
        for at in found
    ]


def _fired(job: Job, at: datetime, argo: Argo) -> Status | None:
    """The workflow that Argo made of a firing, by the name that it gives it, unless it is gone or has failed."""
    with suppress(Missing):
        name = f"{submission.cron_name(job)}-{at.timestamp():.0f}"
        found = status.listed(argo.get("Workflow", job.cluster.namespace, name))
        return None if found.phase in FAILED else found
    return None


def _registered(job: Job, argo: Argo) -> tuple[list[str], str]:
    there = argo.get("CronWorkflow", job.cluster.namespace, submission.cron_name(job))
    spec = cast("Json", there["spec"])
    return cast("list[str]", spec["schedules"]), str(spec.get("timezone") or "UTC")
