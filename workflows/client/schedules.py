"""A job on a schedule: registered, suspended, resumed, and filled in for days that have passed."""

from contextlib import suppress
from datetime import UTC, date, datetime
from heapq import merge
from itertools import islice, takewhile
from typing import cast

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.dates import parse_time_zone
from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import register_template, submit
from imagekiln.workflows.client.connect import connect
from imagekiln.workflows.client.status import FAILED_PHASES, WorkflowStatus, read_available_status
from imagekiln.workflows.objects import Json, object_identity
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.cron import fire_times
from imagekiln.workflows.templates.workflow import build_cron_workflow, cron_workflow_name

MAX_FIRE_TIMES = 400  # of one backfill: a year of nights


def schedule(job: Job, cron: str, timezone: str = "UTC", argo: ArgoApi | None = None) -> str:
    """Run the job on a schedule, such as `30 1 * * *`; give its name. Done again, it changes the schedule."""
    argo = argo or connect()
    parse_time_zone(timezone)
    made = build_cron_workflow(job, load_profile(job.cluster.profile), (cron,), timezone)
    register_template(job, argo)
    argo.apply(made)
    return object_identity(made)[2]


def suspend(name: str, namespace: str, argo: ArgoApi | None = None) -> None:
    """Let a schedule rest: nothing is fired."""
    (argo or connect()).set_suspended(namespace, name, suspended=True)


def resume(name: str, namespace: str, argo: ArgoApi | None = None) -> None:
    """Let a schedule go on. What it would have fired last, up to six hours ago, is caught up with."""
    (argo or connect()).set_suspended(namespace, name, suspended=False)


def backfill(
    job: Job, first: date, last: date, argo: ArgoApi | None = None, *, retry: bool = False
) -> list[WorkflowStatus]:
    """Start what the job's schedule would have fired from the first day to the last, as far as that has passed.

    A firing that has been is the same run, so that nothing is made twice. Raises Missing where there is no schedule,
    BadInput where it has not fired, or too often. With `retry`, what ended failed, blank or missing is made again.
    """
    argo = argo or connect()
    crons, zone = _read_schedule(job, argo)
    now, days = datetime.now(UTC), f"from {first} to {last}"
    # Planned before its time, a run would freeze prompts that are still being written.
    due = takewhile(
        lambda at: at <= now, merge(*(fire_times(cron, zone, first, last) for cron in crons))
    )
    found = list(
        islice(dict.fromkeys(islice(due, MAX_FIRE_TIMES * len(crons) + 1)), MAX_FIRE_TIMES + 1)
    )
    if not found:
        raise BadInput(
            f"{cron_workflow_name(job)}: has not fired {days}. Name days that have passed."
        )
    if len(found) > MAX_FIRE_TIMES:
        raise BadInput(
            f"{cron_workflow_name(job)}: fired more than {MAX_FIRE_TIMES} times {days}. Name fewer days."
        )
    return [
        (None if retry else _scheduled_workflow(job, at, argo))
        or submit(job, at.isoformat(), zone, argo, retry=retry)
        for at in found
    ]


def _scheduled_workflow(job: Job, at: datetime, argo: ArgoApi) -> WorkflowStatus | None:
    """The workflow that Argo made of a firing, by the name that it gives it, unless it is gone or has failed."""
    with suppress(Missing):
        name = f"{cron_workflow_name(job)}-{at.timestamp():.0f}"
        found = read_available_status(argo.get("Workflow", job.cluster.namespace, name))
        return None if found.phase in FAILED_PHASES else found
    return None


def _read_schedule(job: Job, argo: ArgoApi) -> tuple[list[str], str]:
    there = argo.get("CronWorkflow", job.cluster.namespace, cron_workflow_name(job))
    spec = cast("Json", there["spec"])
    return cast("list[str]", spec["schedules"]), str(spec.get("timezone") or "UTC")
