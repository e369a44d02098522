"""Waiting for the workflows of tests, and for their pods."""

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import apply, submit, watch
from imagekiln.workflows.client.status import WorkflowStatus
from tests.cluster import kube

CRON_LABEL = "workflows.argoproj.io/cron-workflow"


def wait_for_end(name: str, argo: ArgoApi) -> WorkflowStatus:
    """A workflow's status once it has ended."""
    *_, status = watch(name, kube.NAMESPACE, argo, every=1)
    return status


def wait_for_success(name: str, argo: ArgoApi) -> str:
    """The run of a workflow that has to succeed."""
    status = wait_for_end(name, argo)
    assert (status.phase, status.failures) == ("Succeeded", ())
    assert status.run is not None
    return status.run


def submit_with_template(job: Job, argo: ArgoApi) -> str:
    """The name of the workflow of a job, whose template is brought up to date first."""
    apply(job, argo)
    return submit(job, argo=argo).name


def wait_for_firing(cron: str, argo: ArgoApi) -> str:
    """The name of the first workflow that a schedule of every minute starts."""
    labels = f"{CRON_LABEL}={cron}"
    started = kube.wait_until(
        150, f"a firing of {cron}", lambda: argo.list_objects("Workflow", kube.NAMESPACE, labels)
    )
    return kube.name(started[0])


def wait_for_pod(name: str, step: str, seconds: float = 300) -> kube.Object:
    """A pod of this step, once it runs."""

    def look() -> kube.Object | None:
        running = (
            pod
            for pod in kube.pods(name, step)
            if kube.get_field(pod, "status", "phase") == "Running"
        )
        return next(running, None)

    return kube.wait_until(seconds, f"a pod of {name} that runs {step}", look)
