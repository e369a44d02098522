"""Status of a workflow, for people and for programs that wait for it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.client.connect import next_command
from imagekiln.workflows.client.pods import (
    ENDED_PHASES,
    FAILED_PHASES,
    STAGES,
    STOPPED,
    Attempts,
    PodAttempt,
    Stage,
    StepFailure,
    failure_cause,
    is_finish_step,
    parse_figures,
    pending_groups,
    pod_attempts,
    step_order,
    step_outputs,
)
from imagekiln.workflows.objects import Json, get_mapping, object_name, object_namespace
from imagekiln.workflows.templates.metrics import COST, GPU_USES, IMAGE_STATUSES

SHUTDOWN_STATUS = "Stopped with strategy"  # of workflows that were stopped or terminated
PICKUP_TIME = timedelta(seconds=30)  # a running controller starts a workflow within seconds
# Causes by patterns of Argo's or Kubernetes' messages. The first match counts.
CAUSES = (
    (r"Waiting for .+ lock", "other batches hold the semaphore or mutex"),
    (r"exceeded quota", "the quota is used up"),
    (r"TriggeredScaleUp|Nominated", "a node is being added"),
    (r"Insufficient [\w.-]+/|cannot allocate all claims", "no GPU is free"),
    (r"Insufficient \w", "no node has room"),
    (
        r"FailedMount|FailedAttachVolume|[Pp]ersistent[Vv]olume|volume node affinity",
        "a volume is not ready",
    ),
    (r"didn't match Pod's|untolerated taint", "no node fits the profile"),
    (
        r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|ImageInspect|"
        r"Failed to pull image",
        "the image cannot be pulled",
    ),
    (r"Pulling", "the image is being pulled"),
    (r"CreateContainerConfigError", "a Secret or ConfigMap is missing"),
    (r"FailedCreatePodSandBox|FailedScheduling", "Kubernetes cannot start it"),
)
# Causes that may be temporary or permanent: Kubernetes' message does not tell them apart.
UNFIT_CAUSES = ("no GPU is free", "no node has room", "no node fits the profile")
UNSAID = ("", "ContainerCreating", "PodInitializing")  # messages without an explanation
STARTING = "it is being started"
RETRY_PAUSE = "the next attempt comes after a pause"


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Numbers of `generate` pods that Argo has created, by state."""

    waiting: int
    running: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class StepWait:
    """Pods of one step that wait for the same reason.

    `message` is Argo's or Kubernetes', for one pod.
    """

    step: str
    pods: int
    cause: str
    message: str
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class WorkflowStatus:
    """Status of a workflow at one moment.

    `run` and `images` are None until planning has finished. `rate` (images per second) and
    `seconds_left` are None unless pods are generating. `stage` is None before the workflow has
    started and after it has ended. `waits` lists the reasons why pods wait, and `cause` is the
    reason of the workflow's failure in one line. `warnings` are failures of the exit handler, which
    do not change the result. `device_seconds`, by use, and `cost` are what the run took since its
    previous aggregation, and `statuses` counts its images by status. Before aggregation they are
    empty or None. `cost` is also None without a price.
    """

    name: str
    namespace: str
    phase: str
    message: str
    run: str | None
    images: int | None
    made: int
    pods: PodCounts
    rate: float | None
    seconds_left: float | None
    started: str | None
    finished: str | None
    failures: tuple[StepFailure, ...]
    warnings: tuple[StepFailure, ...] = ()
    cause: str | None = None
    stage: Stage | None = None
    waits: tuple[StepWait, ...] = ()
    device_seconds: Mapping[str, float] = field(default_factory=dict)
    cost: float | None = None
    statuses: Mapping[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Return whether the workflow has ended, successfully or not."""
        return self.phase in ENDED_PHASES


def read_status(workflow: Json, children: Sequence[Json] = ()) -> WorkflowStatus:
    """Read the status of a workflow, including its child workflows.

    Raises BadInput if Argo keeps the nodes in its database.
    """
    state = get_mapping(workflow, "status")
    phase = _phase(workflow)
    members = (workflow, *children)
    pods = [attempts for member in members for attempts in pod_attempts(member)]
    failures = _failures(pods)
    fatal = tuple(failure for failure in failures if not is_finish_step(failure.step))

    outputs = step_outputs(pods, "plan")
    shards = _shards(pods)
    counts = _count_pods(shards)
    images = int(outputs["images"]) if "images" in outputs else None
    made = _count_images(shards, images or 0, int(outputs.get("pods", "1")))
    rate = None if phase in ENDED_PHASES else _image_rate(shards, made, counts.running)
    figures = parse_figures(step_outputs(pods, "aggregate").get("figures", ""))
    return WorkflowStatus(
        name=object_name(workflow),
        namespace=object_namespace(workflow),
        phase=phase,
        message=str(state.get("message") or ""),
        run=outputs.get("run"),
        images=images,
        made=made,
        pods=counts,
        rate=rate,
        seconds_left=(images - made) / rate if rate and images is not None else None,
        started=cast("str | None", state.get("startedAt")),
        finished=cast("str | None", state.get("finishedAt")),
        failures=fatal,
        warnings=tuple(failure for failure in failures if failure not in fatal),
        cause=_cause(fatal, workflow) if phase in FAILED_PHASES else None,
        stage=_stage(pods, phase, planned=images is not None),
        waits=() if phase in ENDED_PHASES else _waits(members, pods),
        device_seconds={use: figures[use] for use in GPU_USES if use in figures},
        cost=figures.get(COST) or None,
        statuses={name: int(figures[name]) for name in IMAGE_STATUSES if figures.get(name)},
    )


def read_available_status(workflow: Json) -> WorkflowStatus:
    """Read the status of a workflow, without counts if its nodes are in Argo's database."""
    try:
        return read_status(workflow)
    except BadInput:
        state = get_mapping(workflow, "status") | {"offloadNodeStatusVersion": ""}
        return read_status(workflow | {"status": state})


def has_ended(workflow: Json) -> bool:
    """Return whether a workflow has ended, from its phase and without its nodes."""
    return _phase(workflow) in ENDED_PHASES


def has_succeeded(workflow: Json) -> bool:
    """Return whether a workflow has succeeded, from its phase."""
    return _phase(workflow) == "Succeeded"


def _phase(workflow: Json) -> str:
    return str(get_mapping(workflow, "status").get("phase") or "Pending")


def _shards(pods: Iterable[Attempts]) -> list[Attempts]:
    """Return the attempts at each shard.

    A child workflow also has a pod for the canary's shard, which finds its images made.
    """
    shards: dict[int | None, Attempts] = {}
    for attempts in pods:
        if attempts[-1].step == "generate":
            shards.setdefault(attempts[-1].shard, attempts)
    return list(shards.values())


def _count_images(shards: Iterable[Attempts], images: int, pods: int) -> int:
    """Count the generated images, by the progress that Argo has read.

    A finished pod without any progress counts for its share.
    """
    if not pods:  # the run was finished before this workflow planned it
        return images
    made = 0.0
    for attempts in shards:
        progress = sum(attempt.images_done for attempt in attempts)
        is_unread = attempts[-1].phase == "Succeeded" and not progress
        made += images / pods if is_unread else progress
    return min(images, round(made))


def _image_rate(shards: Iterable[Attempts], made: int, running: int) -> float | None:
    """Return the images per second of running pods, at the mean rate of all pods so far."""
    now = datetime.now(UTC)
    seconds = 0.0
    for attempts in shards:
        for attempt in attempts:
            if attempt.started:
                end = datetime.fromisoformat(attempt.finished) if attempt.finished else now
                seconds += (end - datetime.fromisoformat(attempt.started)).total_seconds()
    return made / seconds * running if made and running and seconds > 0 else None


def _count_pods(shards: Iterable[Attempts]) -> PodCounts:
    latest = [attempts[-1] for attempts in shards]
    phases = Counter("waiting" if pod.is_waiting else pod.phase for pod in latest)
    return PodCounts(
        waiting=phases["waiting"],
        running=phases["Running"],
        done=phases["Succeeded"],
        failed=sum(phases[phase] for phase in FAILED_PHASES),
    )


def _stage(pods: Sequence[Attempts], phase: str, *, planned: bool) -> Stage | None:
    """Return the furthest stage that has begun; between two pods, the next stage."""
    if phase in ENDED_PHASES or (phase == "Pending" and not pods):
        return None
    begun = {attempts[-1].step for attempts in pods} & STAGES.keys()
    stage = STAGES[max(begun, key=step_order)] if begun else "plan"
    return "generate" if stage == "plan" and planned else stage


def _failures(pods: Iterable[Attempts]) -> tuple[StepFailure, ...]:
    """Return the steps that failed after all retries."""
    return tuple(
        StepFailure(last.step, last.shard, len(earlier) + 1, last.message)
        for *earlier, last in pods
        if last.phase in FAILED_PHASES and not last.is_waiting
    )


def _cause(failures: Sequence[StepFailure], workflow: Json) -> str | None:
    """Explain why a workflow failed; if it was stopped, with the command to resume it."""
    message = str(get_mapping(workflow, "status").get("message") or "")
    cause = failure_cause(failures) or message
    if cause.endswith(STOPPED) or SHUTDOWN_STATUS in cause:
        resume = next_command("resubmit", object_name(workflow), object_namespace(workflow))
        return f"{STOPPED}; {resume} resumes it"
    return cause or None


def _waits(workflows: Sequence[Json], pods: Iterable[Attempts]) -> tuple[StepWait, ...]:
    """Return the waits of the workflow as a whole, then of its pods, the most common first."""
    attempts = [attempts[-1] for attempts in pods]
    for workflow in workflows:
        attempts += pending_groups(workflow)
    groups: dict[tuple[str, str], StepWait] = {}
    for attempt in attempts:
        if attempt.is_waiting:
            wait = _to_wait(attempt)
            group = groups.setdefault((wait.step, wait.cause), wait)
            groups[wait.step, wait.cause] = replace(group, pods=group.pods + 1)
    waits = sorted(groups.values(), key=lambda wait: -wait.pods)
    return (*_workflow_wait(workflows[0]), *waits)


def _to_wait(attempt: PodAttempt) -> StepWait:
    """Return the reason why a pod waits, with a pod count of 0."""
    if attempt.next_attempt is None:
        cause = find_cause(attempt.message)
        return StepWait(attempt.step, 0, cause, attempt.message, attempt.pod)
    parts = filter(None, (attempt.next_attempt, f"the last one ended with {attempt.message}"))
    return StepWait(attempt.step, 0, RETRY_PAUSE, "; ".join(parts))


def _workflow_wait(workflow: Json) -> list[StepWait]:
    """Return the reason why a workflow as a whole waits, before any of its pods."""
    state = get_mapping(workflow, "status")
    message = str(state.get("message") or "")
    created = get_mapping(workflow, "metadata").get("creationTimestamp")
    if get_mapping(workflow, "spec").get("suspend"):
        cause, message = "it is suspended until its queue or somebody resumes it", ""
    elif state.get("phase") == "Pending" and message:
        cause = find_cause(message)
    elif not state.get("phase") and created and _is_old(str(created)):
        cause = "Argo's controller has not started it"
    else:
        return []
    return [StepWait("workflow", 0, cause, message)]


def _is_old(created: str) -> bool:
    return datetime.now(UTC) - datetime.fromisoformat(created) > PICKUP_TIME


def find_cause(message: str) -> str:
    """Translate a message of Argo or Kubernetes to a cause; return the message if none matches."""
    if message in UNSAID:
        return STARTING
    causes = (cause for pattern, cause in CAUSES if re.search(pattern, message))
    return next(causes, message)


def explain_wait(wait: StepWait, events: Sequence[Json]) -> StepWait:
    """Add the latest event of a pod to a wait without a message."""
    if not events:
        return wait
    latest = max(events, key=_event_time)
    message = f"{latest.get('reason', '')}: {latest.get('message', '')}"
    cause = find_cause(message)
    if cause == message and latest.get("type") != "Warning":
        cause = STARTING  # a step of a normal start
    return replace(wait, cause=cause, message=message)


def _event_time(event: Json) -> str:
    last = get_mapping(event, "series").get("lastObservedTime")
    return str(last or event.get("lastTimestamp") or event.get("eventTime") or "")
