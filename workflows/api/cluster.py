"""Jobs on a cluster: submit them to Argo Workflows, and follow them.

```python
from imagekiln import cluster

status = cluster.submit("job.yaml", date="2026-11-21")
for status in cluster.watch(status.name, status.namespace):
    print(status.made, "of", status.images)
print(status.phase, status.run, status.failures)
```

Every function takes the API to use as `argo`, which `connect` makes. By default it is Argo's server
if `ARGO_SERVER` names one, else the Kubernetes API that kubeconfig names. `imagekiln.schedule` runs
jobs again and again.
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
    """Submit a job as a workflow; submitted twice, it runs once.

    A workflow that runs or has succeeded is returned as it is; one that failed is resumed by a new
    one. `date`, such as "2026-11-21", fills `{date}` in the job's prompts and names the run. With
    `retry`, only the failed, blank and missing images of the job's run are generated again.

    Raises BadInput if the job or the cluster's template must be corrected, Missing if the
    cluster lacks what it needs, TryAgain if the API does not answer.
    """
    return client.submit(load_job(job), date, timezone, argo, retry=retry)


@explain_failures
def apply(job: JobSource, *, argo: ArgoApi | None = None) -> str:
    """Create or update the WorkflowTemplate of the job's profile; return its name."""
    return client.apply(load_job(job), argo)
