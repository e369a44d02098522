"""The job on a cluster, from Python: submit it, wait for it, stop it, resubmit it."""

import math
import time
from collections.abc import Iterator
from contextlib import suppress

from imagekiln.steps.dated import moment, refuse_undated, time_zone
from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job import Job
from imagekiln.workflows import gpu_profiles, next_rounds, next_tries, status, submission, templates
from imagekiln.workflows.argo import Argo, connect, identity
from imagekiln.workflows.connection import Json
from imagekiln.workflows.further import PART_OF
from imagekiln.workflows.refusals import Taken
from imagekiln.workflows.status import FAILED, Status

EVERY_SECONDS = 5.0


def apply(job: Job, argo: Argo | None = None) -> str:
    """Register the template of the job's profile, or bring it up to date; give its name."""
    made = _template(job)
    (argo or connect()).apply(made)
    return identity(made)[2]


def submit(job: Job, date: str = "", timezone: str = "", argo: Argo | None = None, *, retry: bool = False) -> Status:
    """Start the job, registering its template if need be.

    A job that is submitted twice runs once: where its workflow runs or has succeeded, that one is given back; where
    it has failed, a new one goes on with what is missing. A template that is another profile's, or another version's,
    is not used: BadInput says so. Raises Missing and TryAgain too.

    With `retry`, what ended failed, blank or missing in the job's run is made again, in a round of its own; while one
    round is under way, no other is begun.
    """
    refuse_undated(job) if not date else moment(date, time_zone(timezone))
    argo = argo or connect()
    profile = gpu_profiles.load(job.cluster.profile)
    made = submission.workflow(job, profile, date, timezone)
    register(job, argo)
    if retry:
        next_rounds.refuse_running(made, argo)
        return next_rounds.begin(lambda number: submission.workflow(job, profile, date, timezone, retry=number), argo)
    try:
        return status.status(argo.create(made))
    except Taken:
        there = argo.get(*identity(made))
        found = status.listed(there)
        return next_tries.begin(there, argo) if found.phase in FAILED else found


def retry(job: Job, date: str = "", timezone: str = "", argo: Argo | None = None) -> Status:
    """Make again what ended failed, blank or missing in the job's run: `submit` with `retry`."""
    return submit(job, date, timezone, argo, retry=True)


def state(name: str, namespace: str, argo: Argo | None = None) -> Status:
    """Where a workflow stands, with the further ones that it has made. Raises Missing."""
    argo = argo or connect()
    there = argo.get("Workflow", namespace, name)
    return status.status(there, argo.find("Workflow", namespace, f"{PART_OF}={name}"))


def watch(name: str, namespace: str, argo: Argo | None = None, every: float = EVERY_SECONDS) -> Iterator[Status]:
    """Where a workflow stands, again and again, until it has ended. An API that is away is asked again."""
    argo = argo or connect()
    while True:
        with suppress(TryAgain):
            now = state(name, namespace, argo)
            yield now
            if now.ended:
                return
        time.sleep(every)


def wait(
    name: str, namespace: str, seconds: float | None = None, argo: Argo | None = None, every: float = EVERY_SECONDS
) -> Status:
    """The status of a workflow once it has ended. Raises TryAgain where that takes longer than `seconds`."""
    argo = argo or connect()
    until = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        try:
            now = state(name, namespace, argo)
            if now.ended:
                return now
            late = TryAgain(f"{name}: is still {now.phase} after {seconds or 0:.0f} s. Wait longer.")
        except TryAgain as error:
            late = error
        if time.monotonic() >= until:
            raise late
        time.sleep(min(every, max(0.0, until - time.monotonic())))


def runs(namespace: str, argo: Argo | None = None) -> list[Status]:
    """Every workflow of ours in a namespace, the newest first."""
    found = (argo or connect()).find("Workflow", namespace, f"app.kubernetes.io/part-of=imagekiln,!{PART_OF}")
    return sorted(map(status.listed, found), key=lambda each: each.started or "~", reverse=True)


def stop(name: str, namespace: str, argo: Argo | None = None) -> None:
    """End a workflow early: its pods finish the part in hand. Resubmitted, the job goes on from there.

    The further workflows that it has made are ended too; first the one that would make more.
    """
    argo = argo or connect()
    if not status.has_ended(argo.get("Workflow", namespace, name)):  # Argo's server refuses to stop what has
        argo.stop(namespace, name)
    for each in next_tries.going(name, namespace, argo):
        argo.stop(namespace, each)


def resubmit(name: str, namespace: str, argo: Argo | None = None) -> Status:
    """Run a workflow that has ended again, under a new name: what is there stays, what is missing is made."""
    argo = argo or connect()
    there = argo.get("Workflow", namespace, name)
    if not status.listed(there).ended:
        raise BadInput(f"{name}: is still running. Wait for it, or stop it first.")
    return next_tries.begin(there, argo)


def result(name: str, namespace: str, argo: Argo | None = None) -> Status:
    """How a workflow ended. Raises TryAgain where it has not."""
    return wait(name, namespace, 0, argo)


def register(job: Job, argo: Argo) -> None:
    """Register the template of the job's profile where there is none. Raises BadInput where there is another one."""
    made = _template(job)
    try:
        there = argo.get(*identity(made))
    except Missing:
        argo.apply(made)
        return
    if templates.digest(there) != templates.digest(made):
        raise BadInput(
            f"WorkflowTemplate {identity(made)[2]}: is that of another profile, or of another version of Imagekiln. "
            "Bring it up to date with `imagekiln apply JOB`, or give your profile another name."
        )


def _template(job: Job) -> Json:
    return templates.workflow_template(gpu_profiles.load(job.cluster.profile), job.cluster.namespace)
