"""Schedules of jobs on a cluster, and backfills of missed runs.

Functions take `argo` as in `imagekiln.cluster`.
"""

import datetime

from imagekiln.local import JobSource, load_job
from imagekiln.steps.errors import explain_failures
from imagekiln.workflows.client import schedules
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.schedules import delete, pause, resume
from imagekiln.workflows.client.schedules import list_schedules as list  # noqa: A004  # as in a shell
from imagekiln.workflows.client.status import WorkflowStatus

__all__ = [  # noqa: RUF022  # in the order of the API reference
    "create",
    "list",
    "pause",
    "resume",
    "delete",
    "backfill",
]


@explain_failures
def create(job: JobSource, cron: str, *, timezone: str = "UTC", argo: ArgoApi | None = None) -> str:
    """Create or update a schedule of the job, such as "30 1 * * *", and return its name."""
    return schedules.create(load_job(job), (cron,), timezone, argo)


@explain_failures
def backfill(
    job: JobSource,
    first: datetime.date,
    last: datetime.date,
    *,
    retry: bool = False,
    argo: ArgoApi | None = None,
) -> tuple[WorkflowStatus, ...]:
    """Submit the job for the scheduled times from the first day to the last, inclusive.

    With `retry`, only the failed, blank and missing images of those runs are generated again.
    """
    runs = schedules.backfill(load_job(job), first, last, argo, retry=retry)
    return tuple(run.status for run in runs)
