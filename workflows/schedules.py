"""A job on a schedule: registered, suspended, resumed, and filled in for days that have passed."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import cast

from cronsim import CronSim, CronSimError

from imagekiln.steps.dated import time_zone
from imagekiln.steps.errors import BadInput
from imagekiln.steps.job import Job
from imagekiln.workflows import client, gpu_profiles, submission
from imagekiln.workflows.argo import Argo, connect, identity
from imagekiln.workflows.connection import Json
from imagekiln.workflows.status import Status


def schedule(job: Job, cron: str, timezone: str = "UTC", argo: Argo | None = None) -> str:
    """Run the job on a schedule, such as `30 1 * * *`; give its name. Done again, it changes the schedule."""
    argo = argo or connect()
    _check(cron)
    time_zone(timezone)
    made = submission.cron_workflow(job, gpu_profiles.load(job.cluster.profile), (cron,), timezone)
    client.register(job, argo)
    argo.apply(made)
    return identity(made)[2]


def suspend(name: str, namespace: str, argo: Argo | None = None) -> None:
    """Let a schedule rest: nothing is fired, and nothing is caught up with."""
    (argo or connect()).suspend(namespace, name, suspended=True)


def resume(name: str, namespace: str, argo: Argo | None = None) -> None:
    """Let a schedule go on."""
    (argo or connect()).suspend(namespace, name, suspended=False)


def backfill(job: Job, first: date, last: date, argo: Argo | None = None) -> list[Status]:
    """Start what the job's schedule would have fired from the first day to the last.

    A firing that has been is the same run, so that nothing is made twice. Raises Missing where there is no schedule.
    """
    argo = argo or connect()
    cron, zone = _registered(job, argo)
    return [client.submit(job, at.isoformat(), zone, argo) for at in firings(cron, zone, first, last)]


def firings(cron: str, timezone: str, first: date, last: date) -> Iterator[datetime]:
    """The moments, in UTC, at which a schedule fires from the first day to the last, both in its time zone."""
    zone = time_zone(timezone)
    _check(cron)
    start = datetime.combine(first, time(), zone)
    end = datetime.combine(last + timedelta(days=1), time(), zone)
    for at in CronSim(cron, start - timedelta(seconds=1)):
        if at >= end:
            return
        yield at.astimezone(UTC)


def _check(cron: str) -> None:
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError as error:
        raise BadInput(
            f"schedule {cron!r}: {error}. Write minute, hour, day, month and weekday: 30 1 * * *."
        ) from error


def _registered(job: Job, argo: Argo) -> tuple[str, str]:
    there = argo.get("CronWorkflow", job.cluster.namespace, submission.cron_name(job))
    spec = cast("Json", there["spec"])
    return cast("list[str]", spec["schedules"])[0], str(spec.get("timezone") or "UTC")
