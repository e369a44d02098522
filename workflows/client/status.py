"""The status of a workflow: what a person looks at, and what a program waits for."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.client.nodes import PodAttempt, plan_outputs, pod_attempts
from imagekiln.workflows.objects import Json, object_metadata

FAILED_PHASES = ("Failed", "Error")
ENDED_PHASES = ("Succeeded", *FAILED_PHASES)
EXIT_CODE_PATTERN = re.compile(r"exit code (\d+)")

Attempts = Sequence[PodAttempt]  # at one pod, the latest last


@dataclass(frozen=True, slots=True)
class PodCounts:
    """How many pods of `generate` wait, run, are done or have failed, of those that Argo made."""

    waiting: int
    running: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A step that failed after its last attempt, with the message of that attempt's pod."""

    step: str
    shard: int | None
    attempts: int
    message: str

    @property
    def exit_code(self) -> int | None:
        """The pod's exit code, where Argo's message names one."""
        match = EXIT_CODE_PATTERN.search(self.message)
        return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class WorkflowStatus:
    """A workflow at one moment.

    `run` and `images` are None until planning has finished; `rate` (images per second) and
    `seconds_left` until the first images are made. `waits` says what the first pod waits for
    while no pod runs.
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
    waits: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the workflow has ended, well or badly."""
        return self.phase in ENDED_PHASES


def read_status(workflow: Json, children: Sequence[Json] = ()) -> WorkflowStatus:
    """The status of a workflow, its child workflows counted in.

    Raises BadInput where Argo keeps the nodes in its database.
    """
    metadata = object_metadata(workflow)
    state = cast("Json", workflow.get("status") or {})
    started = cast("str | None", state.get("startedAt"))
    finished = cast("str | None", state.get("finishedAt"))

    pods: list[Attempts] = []
    for each in (workflow, *children):
        pods += pod_attempts(each)
    shards = [attempts for attempts in pods if attempts[-1].step == "generate"]
    failed = [attempts for attempts in pods if attempts[-1].phase in FAILED_PHASES]

    outputs = plan_outputs(workflow)
    images = int(outputs["images"]) if "images" in outputs else None
    images_done = _count_images(shards, outputs)
    rate = _image_rate(images_done, shards, finished)
    seconds_left = (images - images_done) / rate if rate and images is not None else None
    return WorkflowStatus(
        name=str(metadata["name"]),
        namespace=str(metadata["namespace"]),
        phase=str(state.get("phase") or "Pending"),
        message=str(state.get("message") or ""),
        run=outputs.get("run"),
        images=images,
        made=images_done,
        pods=_count_pods(shards),
        rate=rate,
        seconds_left=seconds_left,
        started=started,
        finished=finished,
        failures=tuple(_step_failure(attempts) for attempts in failed),
        waits=_waiting_reason([attempts[-1] for attempts in pods]),
    )


def read_available_status(workflow: Json) -> WorkflowStatus:
    """The status of a workflow, without counts where Argo keeps the nodes in its database."""
    try:
        return read_status(workflow)
    except BadInput:
        state = cast("Json", workflow["status"])
        return read_status({**workflow, "status": {**state, "offloadNodeStatusVersion": ""}})


def has_ended(workflow: Json) -> bool:
    """Whether a workflow has ended, by its phase alone: its nodes are not needed."""
    state = cast("Json", workflow.get("status") or {})
    return state.get("phase") in ENDED_PHASES


def _count_images(shards: Sequence[Attempts], outputs: Mapping[str, str]) -> int:
    """How many images the pods of generate have made; each makes an equal share of the run."""
    images = int(outputs.get("images", "0"))
    pods = int(outputs.get("pods", "1"))
    images_per_pod = images / max(1, pods)
    return round(sum(_images_done(attempts, images_per_pod) for attempts in shards))


def _images_done(attempts: Attempts, images_per_pod: float) -> float:
    """How many images a pod has made: its own progress, or a pod's whole share once it is done.

    The progress that Argo fills in for a pod without any is no count of images: 0/1, then 1/1.
    """
    if attempts[-1].phase == "Succeeded":
        return images_per_pod
    return max(attempt.images_done for attempt in attempts)


def _image_rate(images: int, shards: Sequence[Attempts], finished: str | None) -> float | None:
    """Images per second since the first pod of generate started."""
    starts = [attempts[0].started for attempts in shards if attempts[0].started]
    if not images or not starts:
        return None
    start = datetime.fromisoformat(min(starts))
    end = datetime.now(UTC)
    if finished:
        end = datetime.fromisoformat(finished)
    seconds = (end - start).total_seconds()
    return images / max(1.0, seconds)


def _count_pods(shards: Sequence[Attempts]) -> PodCounts:
    phases = Counter(attempts[-1].phase for attempts in shards)
    return PodCounts(
        waiting=phases["Pending"],
        running=phases["Running"],
        done=phases["Succeeded"],
        failed=sum(phases[phase] for phase in FAILED_PHASES),
    )


def _step_failure(attempts: Attempts) -> StepFailure:
    last = attempts[-1]
    return StepFailure(last.step, last.shard, len(attempts), last.message)


def _waiting_reason(latest: Sequence[PodAttempt]) -> str | None:
    """What the first pending pod waits for, unless some pod runs."""
    if any(attempt.phase == "Running" for attempt in latest):
        return None
    for attempt in latest:
        if attempt.phase == "Pending" and attempt.message:
            return f"{attempt.step}: {attempt.message}"
    return None
