"""The job on a cluster, from Python: submit it, wait for it, read its logs, stop it, resubmit it."""

import time
from collections.abc import Iterator
from typing import cast

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job import Job
from imagekiln.workflows import gpu_profiles, next_rounds, nodes, status, submission, templates
from imagekiln.workflows.argo import Argo, connect, identity, metadata
from imagekiln.workflows.connection import Json, Taken
from imagekiln.workflows.further import PART_OF
from imagekiln.workflows.status import FAILED, Status

EVERY_SECONDS = 5.0
MOST_TRIES = 100  # of one job, after failures
AGAIN = "-again-"
ARGOS_OWN = " argo=true"  # what its executor says of itself in our container's log


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
    argo = argo or connect()
    profile = gpu_profiles.load(job.cluster.profile)
    made = submission.workflow(job, profile, date, timezone)
    register(job, argo)
    if retry:
        next_rounds.refuse_running(identity(made), argo)
        return next_rounds.begin(lambda number: submission.workflow(job, profile, date, timezone, retry=number), argo)
    try:
        return status.status(argo.create(made))
    except Taken:
        there = argo.get(*identity(made))
        found = status.status(there)
        return _again(there, argo) if found.phase in FAILED else found


def state(name: str, namespace: str, argo: Argo | None = None) -> Status:
    """Where a workflow stands, with the further ones that it has made. Raises Missing."""
    argo = argo or connect()
    there = argo.get("Workflow", namespace, name)
    return status.status(there, argo.find("Workflow", namespace, f"{PART_OF}={name}"))


def watch(name: str, namespace: str, argo: Argo | None = None, every: float = EVERY_SECONDS) -> Iterator[Status]:
    """Where a workflow stands, again and again, until it has ended. An API that is away is asked again."""
    argo = argo or connect()
    while True:
        try:
            now = state(name, namespace, argo)
        except TryAgain:
            time.sleep(every)
            continue
        yield now
        if now.ended:
            return
        time.sleep(every)


def wait(
    name: str, namespace: str, seconds: float | None = None, argo: Argo | None = None, every: float = EVERY_SECONDS
) -> Status:
    """The status of a workflow once it has ended. Raises TryAgain where that takes longer than `seconds`."""
    until = None if seconds is None else time.monotonic() + seconds
    for now in watch(name, namespace, argo, every):
        if now.ended:
            return now
        if until is not None and time.monotonic() > until:
            raise TryAgain(f"{name}: is still {now.phase} after {seconds:.0f} s. Wait longer.")
    raise AssertionError("a watch ends with the workflow")


def runs(namespace: str, argo: Argo | None = None) -> list[Status]:
    """Every workflow of ours in a namespace, the newest first."""
    found = (argo or connect()).find("Workflow", namespace, f"app.kubernetes.io/part-of=imagekiln,!{PART_OF}")
    return sorted((status.status(each) for each in found), key=lambda each: each.started or "~", reverse=True)


def logs(
    name: str, namespace: str, shard: int | None = None, argo: Argo | None = None, *, follow: bool = False
) -> Iterator[str]:
    """The lines that a workflow's pods have logged: of all, each with its pod's step, or of one shard."""
    argo = argo or connect()
    found = [each for tried in nodes.attempts(argo.get("Workflow", namespace, name)) for each in tried]
    wanted = [each for each in found if shard is None or each.shard == shard]
    if not wanted:
        raise Missing(f"{name}: has no pod{'' if shard is None else f' of shard {shard}'} yet. Wait, or see `watch`.")
    for each in sorted(wanted, key=lambda each: each.started or "~"):
        label = each.step if each.shard is None else f"{each.step} {each.shard}"
        try:
            for line in argo.logs(namespace, name, each.pod, follow=follow):
                if ARGOS_OWN not in line:
                    yield line if shard is not None else f"{label}: {line}"
        except (Missing, BadInput) as error:
            yield f"{label}: no log: {error}"


def stop(name: str, namespace: str, argo: Argo | None = None) -> None:
    """End a workflow early: its pods finish the part in hand. Resubmitted, the job goes on from there."""
    (argo or connect()).stop(namespace, name)


def resubmit(name: str, namespace: str, argo: Argo | None = None) -> Status:
    """Run a workflow that has ended again, under a new name: what is there stays, what is missing is made."""
    argo = argo or connect()
    there = argo.get("Workflow", namespace, name)
    if not status.status(there).ended:
        raise BadInput(f"{name}: is still running. Wait for it, or stop it first.")
    return _again(there, argo)


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


def _again(there: Json, argo: Argo) -> Status:
    """Go on with a workflow's work: under the first name that is free, unless the one that has it still may succeed."""
    about = metadata(there)
    first = str(about["name"]).partition(AGAIN)[0]
    spec = {key: value for key, value in cast("Json", there["spec"]).items() if key != "shutdown"}
    kept = {"namespace": about["namespace"]} | {key: _ours(about.get(key)) for key in ("labels", "annotations")}
    for number in range(2, MOST_TRIES):
        name = f"{first}{AGAIN}{number}"
        # Argo's server does not say of what kind its answer is.
        made: Json = {"apiVersion": submission.API, "kind": "Workflow", "metadata": kept | {"name": name}, "spec": spec}
        try:
            return status.status(argo.create(made))
        except Taken:
            found = status.status(argo.get(*identity(made)))
            if found.phase not in FAILED:
                return found
    raise BadInput(f"{first}: failed {MOST_TRIES} times. See why, then delete these workflows.")


def _ours(given: object) -> dict[str, str]:
    """Labels or annotations without those that Argo keeps its own state in."""
    kept = {"workflows.argoproj.io/title", "workflows.argoproj.io/description"}
    pairs = cast("dict[str, str]", given or {}).items()
    return {key: value for key, value in pairs if key in kept or not key.startswith("workflows.argoproj.io/")}
