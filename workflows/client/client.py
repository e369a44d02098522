"""The job on a cluster, from Python: submit it, wait for it, stop it, resubmit it."""

import math
import time
from collections.abc import Iterator
from contextlib import suppress

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job.dates import parse_moment, parse_time_zone, require_date
from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import connect
from imagekiln.workflows.client.failures import AlreadyExists
from imagekiln.workflows.client.resubmission import (
    require_not_running,
    resubmit_workflow,
    running_children,
    start_retry,
)
from imagekiln.workflows.client.status import (
    FAILED_PHASES,
    WorkflowStatus,
    has_ended,
    read_available_status,
    read_status,
)
from imagekiln.workflows.objects import Json, object_identity
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.child_workflows import PARENT_LABEL
from imagekiln.workflows.templates.workflow import build_workflow
from imagekiln.workflows.templates.workflow_template import build_workflow_template, template_digest

POLL_SECONDS = 5.0


def apply(job: Job, argo: ArgoApi | None = None) -> str:
    """Register the template of the job's profile, or bring it up to date; give its name."""
    made = _job_template(job)
    (argo or connect()).apply(made)
    return object_identity(made)[2]


def submit(
    job: Job,
    date: str = "",
    timezone: str = "",
    argo: ArgoApi | None = None,
    *,
    retry: bool = False,
) -> WorkflowStatus:
    """Start the job, registering its template if need be.

    A job that is submitted twice runs once: where its workflow runs or has succeeded, that one is given back; where
    it has failed, a new one goes on with what is missing. A template that is another profile's, or another version's,
    is not used: BadInput says so. Raises Missing and TryAgain too.

    With `retry`, what ended failed, blank or missing in the job's run is made again, in a round of its own; while one
    round is under way, no other is begun.
    """
    require_date(job) if not date else parse_moment(date, parse_time_zone(timezone))
    argo = argo or connect()
    profile = load_profile(job.cluster.profile)
    made = build_workflow(job, profile, date, timezone)
    register_template(job, argo)
    if retry:
        require_not_running(made, argo)
        return start_retry(
            lambda number: build_workflow(job, profile, date, timezone, retry=number), argo
        )
    try:
        return read_status(argo.create(made))
    except AlreadyExists:
        there = argo.get(*object_identity(made))
        found = read_available_status(there)
        return resubmit_workflow(there, argo) if found.phase in FAILED_PHASES else found


def retry(
    job: Job, date: str = "", timezone: str = "", argo: ArgoApi | None = None
) -> WorkflowStatus:
    """Make again what ended failed, blank or missing in the job's run: `submit` with `retry`."""
    return submit(job, date, timezone, argo, retry=True)


def get_status(name: str, namespace: str, argo: ArgoApi | None = None) -> WorkflowStatus:
    """Where a workflow stands, with the further ones that it has made. Raises Missing."""
    argo = argo or connect()
    there = argo.get("Workflow", namespace, name)
    return read_status(there, argo.list_objects("Workflow", namespace, f"{PARENT_LABEL}={name}"))


def watch(
    name: str, namespace: str, argo: ArgoApi | None = None, every: float = POLL_SECONDS
) -> Iterator[WorkflowStatus]:
    """Where a workflow stands, again and again, until it has ended. An API that is away is asked again."""
    argo = argo or connect()
    while True:
        with suppress(TryAgain):
            now = get_status(name, namespace, argo)
            yield now
            if now.ended:
                return
        time.sleep(every)


def wait(
    name: str,
    namespace: str,
    seconds: float | None = None,
    argo: ArgoApi | None = None,
    every: float = POLL_SECONDS,
) -> WorkflowStatus:
    """The status of a workflow once it has ended. Raises TryAgain where that takes longer than `seconds`."""
    argo = argo or connect()
    until = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        try:
            now = get_status(name, namespace, argo)
            if now.ended:
                return now
            late = TryAgain(
                f"{name}: is still {now.phase} after {seconds or 0:.0f} s. Wait longer."
            )
        except TryAgain as error:
            late = error
        if time.monotonic() >= until:
            raise late
        time.sleep(min(every, max(0.0, until - time.monotonic())))


def list_workflows(namespace: str, argo: ArgoApi | None = None) -> list[WorkflowStatus]:
    """Every workflow of ours in a namespace, the newest first."""
    found = (argo or connect()).list_objects(
        "Workflow", namespace, f"app.kubernetes.io/part-of=imagekiln,!{PARENT_LABEL}"
    )
    return sorted(
        map(read_available_status, found), key=lambda each: each.started or "~", reverse=True
    )


def stop(name: str, namespace: str, argo: ArgoApi | None = None) -> None:
    """End a workflow early: its pods finish the part in hand. Resubmitted, the job goes on from there.

    The further workflows that it has made are ended too; first the one that would make more.
    """
    argo = argo or connect()
    if not has_ended(
        argo.get("Workflow", namespace, name)
    ):  # Argo's server refuses to stop what has
        argo.stop(namespace, name)
    for each in running_children(name, namespace, argo):
        argo.stop(namespace, each)


def resubmit(name: str, namespace: str, argo: ArgoApi | None = None) -> WorkflowStatus:
    """Run a workflow that has ended again, under a new name: what is there stays, what is missing is made."""
    argo = argo or connect()
    there = argo.get("Workflow", namespace, name)
    if not read_available_status(there).ended:
        raise BadInput(f"{name}: is still running. Wait for it, or stop it first.")
    return resubmit_workflow(there, argo)


def result(name: str, namespace: str, argo: ArgoApi | None = None) -> WorkflowStatus:
    """How a workflow ended. Raises TryAgain where it has not."""
    return wait(name, namespace, 0, argo)


def register_template(job: Job, argo: ArgoApi) -> None:
    """Register the template of the job's profile where there is none. Raises BadInput where there is another one."""
    made = _job_template(job)
    try:
        there = argo.get(*object_identity(made))
    except Missing:
        argo.apply(made)
        return
    if template_digest(there) != template_digest(made):
        raise BadInput(
            f"WorkflowTemplate {object_identity(made)[2]}: is that of another profile, or of another version of Imagekiln. "
            "Bring it up to date with `imagekiln apply JOB`, or give your profile another name."
        )


def _job_template(job: Job) -> Json:
    return build_workflow_template(load_profile(job.cluster.profile), job.cluster.namespace)
