"""Jobs on a cluster: submit them to Argo Workflows, and follow them.

```python
from imagekiln import cluster

status = cluster.submit("job.yaml", date="2026-11-21")
for status in cluster.watch(status.name, status.namespace):
    print(status.made, "of", status.images)
print(status.phase, status.run, status.failures)
```

Every function takes the API to use as `argo`, which `connect` returns. By default, it is Argo's
server if `ARGO_SERVER` is set, else the Kubernetes API of kubeconfig. `imagekiln.schedule` runs
jobs repeatedly.
"""

from imagekiln.local import JobSource, load_job
from imagekiln.steps.errors import explain_failures
from imagekiln.workflows.client import client
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import resubmit, stop, watch, workflows
from imagekiln.workflows.client.connect import connect
from imagekiln.workflows.client.logs import logs
from imagekiln.workflows.client.status import WorkflowStatus
from imagekiln.workflows.templates.batch import batch_task

__all__ = [  # noqa: RUF022  # in the order of the API reference
    "connect",
    "submit",
    "watch",
    "workflows",
    "logs",
    "stop",
    "resubmit",
    "apply",
    "batch_task",
]


@explain_failures
def submit(
    job: JobSource,
    *,
    date: str = "",
    timezone: str = "UTC",
    retry: bool = False,
    argo: ArgoApi | None = None,
) -> WorkflowStatus:
    """Submit a job as a workflow. Submitting it twice runs it once.

    A workflow that runs or has succeeded is returned unchanged. A failed one is resumed by a new
    workflow. `date`, such as "2026-11-21", replaces `{date}` in the job's prompts and names the
    run. With `retry`, only the failed, blank and missing images of the job's run are generated
    again.

    Raises BadInput if the job or the cluster's template must be corrected, Missing if the cluster
    lacks a required object, TryAgain if the API does not respond.
    """
    return client.submit(load_job(job), date, timezone, argo, retry=retry)


@explain_failures
def apply(job: JobSource, *, argo: ArgoApi | None = None) -> str:
    """Create or update the WorkflowTemplate of the job's profile, and return its name."""
    return client.apply(load_job(job), argo)
