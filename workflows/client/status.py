"""The status of a workflow: what a person looks at, and what a program waits for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.client.connect import next_command
from imagekiln.workflows.client.nodes import (
    ENDED_PHASES,
    PodAttempt,
    aggregate_figures,
    pending_groups,
    plan_outputs,
    pod_attempts,
)
from imagekiln.workflows.client.steps import (
    STOPPED,
    Stage,
    StepFailure,
    current_stage,
    failure_cause,
    is_finish_step,
)
from imagekiln.workflows.client.waits import STARTING, StepWait, find_cause, find_waits
from imagekiln.workflows.objects import Json, get_mapping, object_metadata
from imagekiln.workflows.templates.metrics import COST, GPU_USES, IMAGE_STATUSES

SHUTDOWN_STATUS = "Stopped with strategy"  # of a workflow that was stopped or terminated
FAILED_PHASES = ("Failed", "Error")
PLAIN_KEYS = ("phase", "message", "startedAt", "finishedAt")  # of a status, beside its nodes
PICKUP_TIME = timedelta(seconds=30)  # a controller that runs starts a workflow within seconds

Attempts = Sequence[PodAttempt]  # at one pod, the latest last


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Numbers of pods of `generate`, of those that Argo has made, by their state."""

    waiting: int
    running: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class WorkflowStatus:
    """A workflow at one moment.

    `run` and `images` are None until planning has finished; `rate` (images per second while
    generating) and `seconds_left` until the first images are made. `stage` is None before the
    workflow has started and once it has ended. `waits` says what pods wait for, and `cause` in one
    line why the workflow failed. `warnings` are failures that changed nothing about its end: those
    of the exit handler. `device_seconds`, by use, and `cost` are what the run took since it was
    aggregated before, in this workflow and in any that was stopped; empty and None until they are
    known, `cost` also where there is no price. `statuses` counts the images of the run by status,
    once it was aggregated.
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
        """Return whether the workflow has ended, well or badly."""
        return self.phase in ENDED_PHASES


def read_status(workflow: Json, children: Sequence[Json] = ()) -> WorkflowStatus:
    """The status of a workflow, its child workflows counted in.

    Raises BadInput if Argo keeps the nodes in its database.
    """
    metadata = object_metadata(workflow)
    state = cast("Json", workflow.get("status") or {})
    phase = _phase(workflow)
    message = str(state.get("message") or "")
    finished = _text_or_none(state.get("finishedAt"))

    pods: list[Attempts] = []
    for member in (workflow, *children):
        pods += pod_attempts(member)
    shards = _generate_pods(pods)
    failures, warnings = _failures(pods)

    outputs = plan_outputs(workflow)
    images = int(outputs["images"]) if "images" in outputs else None
    images_done = _count_images(shards, outputs)
    stage = _stage(pods, phase, planned=images is not None)
    # The pause in which a canary is judged says nothing of the pods after it.
    has_canary = outputs.get("canary") == "1"
    rest = [attempts for attempts in shards if attempts[-1].shard != 0] if has_canary else shards
    rate = _image_rate(_count_images(rest, outputs), rest, _generation_end(rest, stage, finished))
    figures = aggregate_figures(workflow)
    seconds_left = None
    if rate and images is not None:
        seconds_left = (images - images_done) / rate
    return WorkflowStatus(
        name=str(metadata["name"]),
        namespace=str(metadata["namespace"]),
        phase=phase,
        message=message,
        run=outputs.get("run"),
        images=images,
        made=images_done,
        pods=_count_pods(shards),
        rate=rate,
        seconds_left=seconds_left,
        started=_text_or_none(state.get("startedAt")),
        finished=finished,
        failures=failures,
        warnings=warnings,
        cause=_cause(failures, workflow) if phase in FAILED_PHASES else None,
        stage=stage,
        waits=() if phase in ENDED_PHASES else _waits([workflow, *children], pods),
        device_seconds={use: figures[use] for use in GPU_USES if use in figures},
        cost=figures.get(COST) or None,
        statuses={name: int(figures[name]) for name in IMAGE_STATUSES if figures.get(name)},
    )


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def read_available_status(workflow: Json) -> WorkflowStatus:
    """The status of a workflow, without counts if its nodes are in Argo's database."""
    try:
        return read_status(workflow)
    except BadInput:
        state = get_mapping(workflow, "status")
        plain = {key: state[key] for key in state if key in PLAIN_KEYS}
        return read_status(workflow | {"status": plain})


def has_ended(workflow: Json) -> bool:
    """Return whether a workflow has ended, by its phase alone: its nodes are not needed."""
    return _phase(workflow) in ENDED_PHASES


def has_succeeded(workflow: Json) -> bool:
    """Return whether a workflow has ended well, by its phase alone."""
    return _phase(workflow) == "Succeeded"


def _phase(workflow: Json) -> str:
    return str(get_mapping(workflow, "status").get("phase") or "Pending")


def _generate_pods(pods: Sequence[Attempts]) -> list[Attempts]:
    """Return the attempts at each shard.

    A child workflow has a pod for the canary's shard too, which finds its images made.
    """
    shards: dict[int | None, Attempts] = {}
    for attempts in pods:
        if attempts[-1].step == "generate":
            shards.setdefault(attempts[-1].shard, attempts)
    return list(shards.values())


def _count_images(shards: Sequence[Attempts], outputs: Mapping[str, str]) -> int:
    """Return how many images pods have made, by the progress that Argo has read.

    A pod that is done, and of which it has read none, has made its share of what the others leave.
    """
    images = int(outputs.get("images", "0"))
    pods = int(outputs.get("pods", "1"))
    if not pods:  # the run had finished before this workflow planned it
        return images
    sizes = list(filter(None, map(_pod_images, shards)))
    share = max(0, images - sum(sizes)) / max(1, pods - len(sizes))
    made = sum(_images_done(attempts, share) for attempts in shards)
    return min(images, round(made))


def _images_done(attempts: Attempts, share: float) -> float:
    """Return how many images a pod has made: its progress, or all images once it is done."""
    if attempts[-1].phase == "Succeeded":
        return _pod_images(attempts) or share
    return _progress(attempts)


def _pod_images(attempts: Attempts) -> int:
    """Count the images of a pod. A later attempt leaves out those that existed before it."""
    earlier = accumulate((attempt.images_done for attempt in attempts), initial=0)
    return max(done + attempt.images for done, attempt in zip(earlier, attempts, strict=False))


def _progress(attempts: Attempts) -> int:
    return sum(attempt.images_done for attempt in attempts)


def _image_rate(images: int, shards: Sequence[Attempts], end: str | None) -> float | None:
    """Images per second since the first pod of generate started."""
    starts = [attempts[0].started for attempts in shards if attempts[0].started]
    if not images or not starts:
        return None
    start = datetime.fromisoformat(min(starts))
    last = datetime.fromisoformat(end) if end else datetime.now(UTC)
    return images / max(1.0, (last - start).total_seconds())


def _generation_end(
    shards: Sequence[Attempts], stage: Stage | None, finished: str | None
) -> str | None:
    """Return when generating was over; None while it is not."""
    if stage in ("rewrite", "plan", "fetch", "generate"):
        return None
    ends = [attempts[-1].finished for attempts in shards if attempts[-1].finished]
    return max(ends, default=finished)


def _count_pods(shards: Sequence[Attempts]) -> PodCounts:
    waiting = sum(attempts[-1].is_waiting for attempts in shards)
    phases = Counter(attempts[-1].phase for attempts in shards if not attempts[-1].is_waiting)
    return PodCounts(
        waiting=waiting,
        running=phases["Running"],
        done=phases["Succeeded"],
        failed=sum(phases[phase] for phase in FAILED_PHASES),
    )


def _stage(pods: Sequence[Attempts], phase: str, *, planned: bool) -> Stage | None:
    """The stage that a workflow is in; None before it has started, and once it has ended."""
    if phase in ENDED_PHASES or (phase == "Pending" and not pods):
        return None
    return current_stage({attempts[-1].step for attempts in pods}, planned=planned)


def _failures(
    pods: Sequence[Attempts],
) -> tuple[tuple[StepFailure, ...], tuple[StepFailure, ...]]:
    """The steps that failed for good: those that fail the workflow, and those that do not."""
    failures: list[StepFailure] = []
    warnings: list[StepFailure] = []
    for attempts in pods:
        last = attempts[-1]
        if last.phase not in FAILED_PHASES or last.is_waiting:
            continue
        kind = warnings if is_finish_step(last.step) else failures
        kind.append(StepFailure(last.step, last.shard, len(attempts), last.message))
    return tuple(failures), tuple(warnings)


def _cause(failures: Sequence[StepFailure], workflow: Json) -> str | None:
    """Explain why a workflow failed; if it was stopped, with the command to resume it."""
    state = cast("Json", workflow.get("status") or {})
    cause = failure_cause(failures) or str(state.get("message") or "")
    if cause.endswith(STOPPED) or SHUTDOWN_STATUS in cause:
        metadata = object_metadata(workflow)
        resume = next_command("resubmit", str(metadata["name"]), str(metadata["namespace"]))
        return f"{STOPPED}; {resume} resumes it"
    return cause or None


def _waits(workflows: Sequence[Json], pods: Sequence[Attempts]) -> tuple[StepWait, ...]:
    """Return the waits of the pods, and of the workflow as a whole."""
    latest = [attempts[-1] for attempts in pods]
    for workflow in workflows:
        latest += pending_groups(workflow)
    waits = find_waits(latest)
    whole = _workflow_wait(workflows[0]) or _last_pods_wait(workflows[0], waits)
    return (whole, *waits) if whole else waits


def _last_pods_wait(workflow: Json, waits: Sequence[StepWait]) -> StepWait | None:
    """Return the wait of a stopped workflow for pods that may never start, if it has one.

    They are those of its exit handler.
    """
    spec = cast("Json", workflow.get("spec") or {})
    if spec.get("shutdown") != "Stop" or all(wait.cause == STARTING for wait in waits):
        return None
    metadata = object_metadata(workflow)
    again = next_command("stop", str(metadata["name"]), str(metadata["namespace"]))
    return StepWait("workflow", 0, f"it is stopping; {again} again terminates it", "")


def _workflow_wait(workflow: Json) -> StepWait | None:
    """Return the wait of a workflow as a whole, before any of its pods."""
    spec = cast("Json", workflow.get("spec") or {})
    state = cast("Json", workflow.get("status") or {})
    if spec.get("suspend"):
        return StepWait("workflow", 0, "it is suspended until its queue or somebody resumes it", "")
    if not state.get("phase"):
        cause = "Argo's controller has not started it"
        return StepWait("workflow", 0, cause, "") if _age(workflow) > PICKUP_TIME else None
    message = str(state.get("message") or "")
    if state["phase"] == "Pending" and message:
        return StepWait("workflow", 0, find_cause(message), message)
    return None


def _age(workflow: Json) -> timedelta:
    """Return the age of a workflow; zero if it is not known."""
    created = object_metadata(workflow).get("creationTimestamp")
    if not created:
        return timedelta()
    return datetime.now(UTC) - datetime.fromisoformat(str(created))
