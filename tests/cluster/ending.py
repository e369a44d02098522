"""Waiting for workflows of tests, and for their pods."""

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import apply, submit, wait
from imagekiln.workflows.client.status import WorkflowStatus
from tests.cluster import kube

SECONDS = 900.0


def ended(name: str, argo: ArgoApi) -> WorkflowStatus:
    """A workflow's status once it has ended."""
    return wait(name, kube.NAMESPACE, SECONDS, argo, every=1)


def succeeded(name: str, argo: ArgoApi) -> str:
    """The run of a workflow that has to succeed."""
    status = ended(name, argo)
    assert (status.phase, status.failures) == ("Succeeded", ())
    assert status.run is not None
    return status.run


def submitted(job: Job, argo: ArgoApi) -> str:
    """The name of the workflow of a job, whose template is brought up to date first."""
    apply(job, argo)
    return submit(job, argo=argo).name


def running(name: str, step: str, seconds: float = 300) -> kube.Object:
    """A pod of this step, once it runs."""

    def look() -> kube.Object | None:
        found = (
            each for each in kube.pods(name, step) if kube.at(each, "status", "phase") == "Running"
        )
        return next(found, None)

    return kube.until(seconds, f"a pod of {name} that runs {step}", look)
