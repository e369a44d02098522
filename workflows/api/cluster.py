"""Jobs on a cluster: submit them to Argo Workflows, follow them, schedule them.

```python
from imagekiln import cluster

status = cluster.submit("job.yaml", date="2026-11-21")
status = cluster.wait(status.name, status.namespace)
print(status.phase, status.run, status.failures)
```

Every function takes the API to use as `argo`, which `connect` makes. By default it is Argo's server
where `ARGO_SERVER` names one, else the Kubernetes API that kubeconfig names.
"""

import datetime

from imagekiln.local import JobSource, load_job
from imagekiln.steps.errors import explain_failures
from imagekiln.workflows.client import client, schedules
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import (
    get_status,
    list_workflows,
    resubmit,
    result,
    wait,
    watch,
)
from imagekiln.workflows.client.connect import connect
from imagekiln.workflows.client.logs import logs
from imagekiln.workflows.client.schedules import (
    list_schedules,
    resume,
    suspend,
    unschedule,
)
from imagekiln.workflows.client.status import WorkflowStatus
from imagekiln.workflows.client.stopping import stop
from imagekiln.workflows.templates.batch import batch_task

__all__ = [  # noqa: RUF022  # in the order of the API reference
    "connect",
    "submit",
    "retry",
    "get_status",
    "watch",
    "wait",
    "result",
    "list_workflows",
    "logs",
    "stop",
    "resubmit",
    "apply",
    "schedule",
    "list_schedules",
    "suspend",
    "resume",
    "unschedule",
    "backfill",
    "batch_task",
]


def __dir__() -> list[str]:
    return sorted(__all__)


@explain_failures
def submit(
    job: JobSource, *, date: str = "", timezone: str = "UTC", argo: ArgoApi | None = None
) -> WorkflowStatus:
    """Submit a job as a workflow; submitted twice, it runs once.

    A workflow that runs or has succeeded is returned as it is; one that failed is resumed by a new
    one. `date`, such as "2026-11-21", fills `{date}` in the job's prompts and names the run.

    Raises BadInput where the job or the cluster's template must be corrected, Missing where the
    cluster lacks what it needs, TryAgain where the API does not answer.
    """
    return client.submit(load_job(job), date, timezone, argo)


@explain_failures
def retry(
    job: JobSource, *, date: str = "", timezone: str = "UTC", argo: ArgoApi | None = None
) -> WorkflowStatus:
    """Generate the failed, blank and missing images of the job's run again, in a new round.

    While one round is running, no other is started. Raises what `submit` raises.
    """
    return client.retry(load_job(job), date, timezone, argo)


@explain_failures
def apply(job: JobSource, *, argo: ArgoApi | None = None) -> str:
    """Create or update the WorkflowTemplate of the job's profile; return its name."""
    return client.apply(load_job(job), argo)


@explain_failures
def schedule(
    job: JobSource, cron: str, *, timezone: str = "UTC", argo: ArgoApi | None = None
) -> str:
    """Create or update a schedule of the job, such as "30 1 * * *"; return its name."""
    return schedules.schedule(load_job(job), cron, timezone, argo)


@explain_failures
def backfill(
    job: JobSource,
    first: datetime.date,
    last: datetime.date,
    *,
    retry: bool = False,
    argo: ArgoApi | None = None,
) -> list[WorkflowStatus]:
    """Submit the job for what its schedule would have run from the first day to the last, included.

    With `retry`, only the failed, blank and missing images of those runs are generated again.
    """
    return schedules.backfill(load_job(job), first, last, argo, retry=retry)
