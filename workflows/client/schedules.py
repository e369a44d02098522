"""Schedules of a job: create, list, pause, resume, delete and backfill."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import cast

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.dates import parse_time_zone
from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ArgoApi
from imagekiln.workflows.client.client import (
    OWN_LABEL,
    await_template,
    register_template,
    submit,
)
from imagekiln.workflows.client.connect import connect
from imagekiln.workflows.client.pods import FAILED_PHASES
from imagekiln.workflows.client.status import WorkflowStatus, read_available_status
from imagekiln.workflows.objects import (
    Json,
    get_list,
    get_mapping,
    get_mappings,
    get_texts,
    object_identity,
    object_metadata,
    object_name,
)
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.cron import fire_times, next_fire_time
from imagekiln.workflows.templates.workflow import (
    build_cron_workflow,
    cron_workflow_name,
    shares_new_rows,
)

MAX_FIRE_TIMES = 400  # in one backfill: a year of days
# On a schedule whose times were changed: the time of the change, in UTC.
CHANGED_ANNOTATION = "imagekiln.dev/times-changed"


def create(
    job: Job, crons: tuple[str, ...], timezone: str = "UTC", argo: ArgoApi | None = None
) -> str:
    """Create or update a schedule of cron lines such as `30 1 * * *`, and return its name.

    A second call updates the schedule, which stays paused if it is.
    """
    argo = argo or connect()
    timezone = parse_time_zone(timezone).key  # Argo counts surrounding spaces as part of the name
    profile = load_profile(job.cluster.profile)
    cron_workflow = build_cron_workflow(job, profile, crons, timezone)

    is_new = register_template(job, argo)
    await_template(partial(_apply_schedule, cron_workflow, argo), is_new)
    return object_name(cron_workflow)


def _apply_schedule(cron_workflow: Json, argo: ArgoApi) -> None:
    """Create a schedule, or update the one with its name.

    The schedule's times name its runs, so the time of their last change is stored. A backfill would
    give earlier runs other names.
    """
    with suppress(Missing):
        current = argo.get(*object_identity(cron_workflow))
        changed_at = get_texts(current, "metadata", "annotations").get(CHANGED_ANNOTATION)
        if _read_times(current) != _read_times(cron_workflow):
            changed_at = datetime.now(UTC).isoformat(timespec="seconds")
        if changed_at:
            metadata = object_metadata(cron_workflow)
            annotations = get_texts(metadata, "annotations") | {CHANGED_ANNOTATION: changed_at}
            cron_workflow = {**cron_workflow, "metadata": metadata | {"annotations": annotations}}
    argo.apply(cron_workflow)


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule: its cron lines, its last and next start, and its running workflows.

    `last_started` is a time in UTC, None if the schedule has never started a workflow. `next_start`
    is None if it is suspended.
    """

    name: str
    namespace: str
    crons: tuple[str, ...]
    timezone: str
    suspended: bool
    last_started: str | None
    running: tuple[str, ...]
    next_start: str | None = None


def list_schedules(namespace: str, argo: ArgoApi | None = None) -> list[ScheduleStatus]:
    """List Imagekiln's schedules in a namespace, by name."""
    argo = argo or connect()
    cron_workflows = argo.list_objects("CronWorkflow", namespace, OWN_LABEL)
    statuses = [_read_schedule_status(namespace, item) for item in cron_workflows]
    return sorted(statuses, key=lambda status: status.name)


def _read_schedule_status(namespace: str, cron_workflow: Json) -> ScheduleStatus:
    status = get_mapping(cron_workflow, "status")
    crons, timezone = _read_times(cron_workflow)
    suspended = bool(get_mapping(cron_workflow, "spec").get("suspend"))
    return ScheduleStatus(
        name=object_name(cron_workflow),
        namespace=namespace,
        crons=tuple(crons),
        timezone=timezone,
        suspended=suspended,
        last_started=cast("str | None", status.get("lastScheduledTime")),
        running=tuple(str(workflow.get("name", "")) for workflow in get_mappings(status, "active")),
        next_start=None if suspended else find_next_start(crons, timezone),
    )


def _read_times(cron_workflow: Json) -> tuple[list[str], str]:
    """Return the cron lines and the time zone of a schedule."""
    crons = [str(cron) for cron in get_list(cron_workflow, "spec", "schedules")]
    timezone = get_mapping(cron_workflow, "spec").get("timezone")
    return crons, str(timezone or "UTC")


def find_next_start(crons: Sequence[str], timezone: str) -> str | None:
    """Return the next start of a schedule, in UTC as Kubernetes writes it.

    None if there is none, or the schedule cannot be parsed.
    """
    with suppress(BadInput):
        moment = next_fire_time(crons, timezone, datetime.now(UTC))
        return None if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    return None


def delete(name: str, namespace: str, argo: ArgoApi | None = None) -> None:
    """Delete a schedule. Workflows that it started continue. Raises Missing."""
    argo = argo or connect()
    argo.get("CronWorkflow", namespace, name)  # deleting an absent object succeeds silently
    argo.delete("CronWorkflow", namespace, name)


def pause(name: str, namespace: str, argo: ArgoApi | None = None) -> None:
    """Pause a schedule until it is resumed."""
    argo = argo or connect()
    argo.set_suspended(namespace, name, suspended=True)


def resume(name: str, namespace: str, argo: ArgoApi | None = None) -> None:
    """Resume a schedule. Argo catches up on the last fire time if that is under six hours ago."""
    argo = argo or connect()
    argo.set_suspended(namespace, name, suspended=False)


@dataclass(frozen=True, slots=True)
class BackfilledRun:
    """A past run of a schedule: its day, and its workflow."""

    day: date
    status: WorkflowStatus


def backfill(
    job: Job, first: date, last: date, argo: ArgoApi | None = None, *, retry: bool = False
) -> list[BackfilledRun]:
    """Start the job for each fire time of its schedule from the first day to the last.

    Future fire times are skipped. A fire time that the schedule has run before gives the same run,
    so no image is made twice. With `retry`, the failed, blank and missing images of these runs are
    generated again.

    Raises Missing if there is no schedule, and BadInput for no fire times or too many, for times
    before the last change of the schedule, and for runs that would make the same new rows.
    """
    if last < first:
        raise BadInput(f"backfill: the last day, {last}, is before the first, {first}. Swap them.")
    if not retry and shares_new_rows(job):
        raise BadInput(
            f"{job.name}: makes what is new in one table, whichever run it is in. "
            "Submit it once: `imagekiln submit JOB`."
        )
    argo = argo or connect()
    cron_workflow = _read_schedule(job, argo)
    crons, timezone = _read_times(cron_workflow)
    zone = parse_time_zone(timezone)
    times = _past_fire_times(crons, timezone, first, last)
    name = cron_workflow_name(job)
    if not times:
        raise BadInput(f"{name}: has no past run time from {first} to {last}. Choose earlier days.")
    if len(times) > MAX_FIRE_TIMES:
        raise BadInput(f"{name}: has more than {MAX_FIRE_TIMES} run times. Choose fewer days.")
    _require_unchanged(cron_workflow, times[0], name)

    runs = []
    for fire_time in times:
        status = None if retry else _fired_workflow(job, fire_time, argo)
        if status is None:
            status = submit(job, fire_time.isoformat(), timezone, argo, retry=retry)
        runs.append(BackfilledRun(fire_time.astimezone(zone).date(), status))
    return runs


def _read_schedule(job: Job, argo: ArgoApi) -> Json:
    """Read the job's schedule. Raises Missing."""
    name = cron_workflow_name(job)
    try:
        return argo.get("CronWorkflow", job.cluster.namespace, name)
    except Missing as error:
        raise Missing(
            f"{job.name}: has no schedule in namespace {job.cluster.namespace}, whose past runs "
            "could be submitted. Create one: `imagekiln schedule create JOB --cron CRON`; or "
            "submit one moment: `imagekiln submit JOB --date 2026-11-20T01:30 --timezone ZONE`. A "
            "day alone is midnight, another run than a schedule's."
        ) from error


def _past_fire_times(
    crons: Sequence[str], timezone: str, first: date, last: date
) -> list[datetime]:
    """Return the past fire times of all cron lines, in order and without duplicates.

    Future ones are skipped: a run that is planned early would freeze prompts not yet written.
    """
    now = datetime.now(UTC)
    times = {time for cron in crons for time in fire_times(cron, timezone, first, last)}
    return sorted(time for time in times if time <= now)


def _require_unchanged(cron_workflow: Json, first: datetime, name: str) -> None:
    """Raise BadInput for a fire time before the last change of the schedule's times."""
    changed_at = get_texts(cron_workflow, "metadata", "annotations").get(CHANGED_ANNOTATION)
    if changed_at and first < datetime.fromisoformat(changed_at):
        raise BadInput(
            f"{name}: has these times only since {changed_at}. Runs from "
            "before are named by the times of then, and would be made a second time. Choose later "
            "days, or submit each by its own time: "
            "`imagekiln submit JOB --date 2026-11-20T01:30 --timezone ZONE`."
        )


def _fired_workflow(job: Job, fire_time: datetime, argo: ArgoApi) -> WorkflowStatus | None:
    """Find the workflow that the schedule started at this time, unless it is gone or failed."""
    # Argo names it after the schedule and the time in seconds.
    name = f"{cron_workflow_name(job)}-{fire_time.timestamp():.0f}"
    with suppress(Missing):
        workflow = argo.get("Workflow", job.cluster.namespace, name)
        status = read_available_status(workflow)
        if status.phase not in FAILED_PHASES:
            return status
    return None
