"""The life of a job on a cluster: register its template, submit, watch, stop, resubmit."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.job.dates import parse_moment, parse_time_zone, require_date
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptList
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.connect import connect, next_command
from imagekiln.workflows.client.http import AlreadyExists
from imagekiln.workflows.client.pods import FAILED_PHASES
from imagekiln.workflows.client.resubmission import (
    find_running_twin,
    is_stopping,
    require_not_stopping,
    resubmit_workflow,
    running_children,
    start_retry,
)
from imagekiln.workflows.client.status import (
    UNSAID,
    WorkflowStatus,
    explain_wait,
    has_ended,
    has_succeeded,
    read_available_status,
    read_status,
)
from imagekiln.workflows.objects import Json, object_identity, object_name
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.dag import PARENT_LABEL
from imagekiln.workflows.templates.workflow import build_workflow, require_reachable_paths
from imagekiln.workflows.templates.workflow_template import build_job_template, template_digest

POLL_SECONDS = 5.0
MAX_SILENCE_SECONDS = 600.0  # without a response of the API
SILENCE = "No answer from the cluster; the workflow continues. Retrying for up to 10 minutes."
OWN_LABEL = "app.kubernetes.io/part-of=imagekiln"
TEMPLATE_PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds
Started = TypeVar("Started")
Stopping = Literal["stopping", "terminated", "ended", "succeeded"]


def apply(job: Job, argo: ArgoApi | None = None) -> str:
    """Register or update the WorkflowTemplate of the job's profile, and return its name."""
    argo = argo or connect()
    template = _job_template(job)
    argo.apply(template)
    return object_name(template)


def submit(
    job: Job,
    date: str = "",
    timezone: str = "",
    argo: ArgoApi | None = None,
    *,
    retry: bool = False,
) -> WorkflowStatus:
    """Start the job, after registering its template if there is none.

    A job that is submitted twice runs once. If a workflow does the same work or has done so,
    including workflows of a schedule, the second call returns its status. If it has failed, the
    second call resubmits it. If it is being stopped, the second call is refused. With `retry`, a
    new workflow regenerates the failed, blank and missing images of the job's run, one retry at a
    time.

    Raises BadInput, also if the registered template has another profile or version, and TryAgain.
    """
    require_readable_date(job, date, timezone)
    argo = argo or connect()
    profile = load_profile(job.cluster.profile)
    if isinstance(job.prompts, PromptList):
        # Imported only here: pyarrow is slow to import, and only inline prompts need it.
        from imagekiln.steps.plan.source_files import store_prompt_list

        require_reachable_paths(job)
        job = store_prompt_list(job, job.prompts)

    def build(number: int = 0) -> Json:
        return build_workflow(job, profile, date, timezone, retry=number)

    workflow = build()
    is_new = register_template(job, argo)
    twin = find_running_twin(workflow, argo)
    if twin is None:
        start = partial(start_retry, build, argo) if retry else partial(_start, workflow, argo)
        return await_template(start, is_new)
    status = read_available_status(twin)
    if retry:
        stop_command = next_command("stop", status.name, status.namespace)
        raise BadInput(
            f"{status.name}: is still running. Wait for it, or stop it, before you retry: "
            f"{stop_command}."
        )
    return status


def register_template(job: Job, argo: ArgoApi) -> bool:
    """Register the WorkflowTemplate of the job's profile, unless one with its name exists.

    Returns whether it is new. Raises BadInput if the existing one was made from another profile or
    version.
    """
    template = _job_template(job)
    identity = object_identity(template)
    try:
        registered = argo.get(*identity)
    except Missing:
        argo.apply(template)
        return True
    if template_digest(registered) != template_digest(template):
        raise BadInput(
            f"WorkflowTemplate {identity[2]}: was made from another profile, or by another version "
            "of Imagekiln. Update it with `imagekiln apply JOB`, or rename your profile."
        )
    return False


def await_template(
    start: Callable[[], Started], is_new: bool, pauses: Sequence[float] = TEMPLATE_PAUSES
) -> Started:
    """Return the result of `start`, repeating it while Argo lacks the new template.

    Argo's server sees a new template slightly later than the cluster.
    """
    for pause in pauses if is_new else ():
        try:
            return start()
        except Missing:
            time.sleep(pause)
    return start()


def get_status(name: str, namespace: str, argo: ArgoApi | None = None) -> WorkflowStatus:
    """Read the status of a workflow, including its child workflows. Raises Missing.

    If Argo does not report why pods wait, the events of one pod are requested.
    """
    argo = argo or connect()
    workflow = argo.get("Workflow", namespace, name)
    children = argo.list_objects("Workflow", namespace, f"{PARENT_LABEL}={name}")
    status = read_status(workflow, children)
    unexplained = next((wait for wait in status.waits if wait.message in UNSAID and wait.pod), None)
    if unexplained is None:
        return status
    explained = unexplained
    with suppress(KilnError):  # without the right to read events, the reason stays unknown
        events = argo.pod_events(namespace, str(unexplained.pod))
        explained = explain_wait(unexplained, events)
    waits = (explained if wait is unexplained else wait for wait in status.waits)
    return replace(status, waits=tuple(waits))


def watch(
    name: str,
    namespace: str,
    argo: ArgoApi | None = None,
    every: float = POLL_SECONDS,
    *,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[WorkflowStatus]:
    """Yield a workflow's status now, and every few seconds until it has ended.

    The last status is final, and `next(watch(...))` is the current one. Raises Missing if there is
    no such workflow, and TryAgain if the API does not respond to the first request, or later for
    ten minutes. `report` is called with a message when the API stops responding.
    """
    argo = argo or connect()
    status = get_status(name, namespace, argo)
    yield status

    answered_at = time.monotonic()
    is_silent = False
    while not status.ended:
        time.sleep(every)
        try:
            status = get_status(name, namespace, argo)
        except TryAgain:
            if time.monotonic() - answered_at >= MAX_SILENCE_SECONDS:
                raise
            if not is_silent:
                report(SILENCE)
            is_silent = True
        else:
            answered_at = time.monotonic()
            is_silent = False
            yield status


def workflows(namespace: str, argo: ArgoApi | None = None) -> list[WorkflowStatus]:
    """List Imagekiln's workflows in a namespace, newest first, without child workflows."""
    argo = argo or connect()
    listed = argo.list_objects("Workflow", namespace, f"{OWN_LABEL},!{PARENT_LABEL}")
    statuses = [read_available_status(workflow) for workflow in listed]
    return sorted(statuses, key=lambda status: status.started or "~", reverse=True)


def resubmit(name: str, namespace: str, argo: ArgoApi | None = None) -> WorkflowStatus:
    """Run an ended workflow again, under a new name. Finished parts are kept."""
    argo = argo or connect()
    workflow = argo.get("Workflow", namespace, name)
    require_not_stopping(workflow)
    if not has_ended(workflow):
        raise BadInput(
            f"{name}: is still running. Wait for it, or stop it first: "
            f"{next_command('stop', name, namespace)}."
        )
    return resubmit_workflow(workflow, argo)


def stop(name: str, namespace: str, argo: ArgoApi | None = None) -> Stopping:
    """Stop a workflow and its child workflows: pods finish their part, and a resubmission resumes.

    If all of them are stopping already, terminate them without the exit handler, whose pods may
    find no node. Returns which of these was done, or "ended" or "succeeded" if there was nothing to
    stop.
    """
    argo = argo or connect()
    workflow = argo.get("Workflow", namespace, name)
    # The parent comes first, since it would create more children. Argo's server refuses to stop
    # ended workflows, and does not stop children with their parent.
    running = [] if has_ended(workflow) else [workflow]
    running += running_children(name, namespace, argo)
    if not running:
        return "succeeded" if has_succeeded(workflow) else "ended"
    left = [member for member in running if not is_stopping(member)]
    for member in left or running:
        argo.stop(namespace, object_name(member), at_once=not left)
    return "stopping" if left else "terminated"


def require_readable_date(job: Job, date: str, timezone: str) -> None:
    """Raise BadInput if the pods could not parse the date, or the job requires one."""
    if date:
        parse_moment(date, parse_time_zone(timezone))
    else:
        require_date(job)


def _job_template(job: Job) -> Json:
    return build_job_template(job, load_profile(job.cluster.profile))


def _start(workflow: Json, argo: ArgoApi) -> WorkflowStatus:
    """Create the job's workflow, or resubmit it if it has failed."""
    try:
        return read_status(argo.create(workflow))
    except AlreadyExists:
        existing = argo.get(*object_identity(workflow))
        require_not_stopping(existing)
        status = read_available_status(existing)
        if status.phase in FAILED_PHASES:
            return resubmit_workflow(existing, argo)
        return status
