"""Where a workflow stands: what a person looks at, and a program waits for."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.client.nodes import PodAttempt, plan_outputs, pod_attempts
from imagekiln.workflows.objects import Json, object_metadata

ENDED_PHASES = ("Succeeded", "Failed", "Error")
FAILED_PHASES = ("Failed", "Error")
EXIT_CODE_PATTERN = re.compile(r"exit code (\d+)")


@dataclass(frozen=True, slots=True)
class PodCounts:
    """How many pods of `generate` wait, run, are done or have failed, of those that are known so far."""

    waiting: int
    running: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A step that failed for good, and what its last pod said."""

    step: str
    shard: int | None
    attempts: int
    message: str

    @property
    def exit_code(self) -> int | None:
        """The pod's exit code, where Argo's message names one."""
        found = EXIT_CODE_PATTERN.search(self.message)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class WorkflowStatus:
    """A workflow at one moment.

    `run` and `images` are None until it is planned, `rate` (images a second) and `seconds_left` until images are made.
    `waits` is what the first pod waits for, where none runs.
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
        """Whether nothing more will happen."""
        return self.phase in ENDED_PHASES


def read_status(workflow: Json, further: Sequence[Json] = ()) -> WorkflowStatus:
    """The status of a workflow, and of the further ones that it has made."""
    about, state = object_metadata(workflow), cast("Json", workflow.get("status") or {})
    tried = [each for one in (workflow, *further) for each in pod_attempts(one)]
    shards = [each for each in tried if each[-1].step == "generate"]
    given = plan_outputs(workflow)
    images = int(given["images"]) if "images" in given else None
    share = (images or 0) / max(1, int(given.get("pods", "1")))
    made = round(sum(_images_done(each, share) for each in shards))
    rate = _image_rate(made, shards, cast("str | None", state.get("finishedAt")))
    return WorkflowStatus(
        name=str(about["name"]),
        namespace=str(about["namespace"]),
        phase=str(state.get("phase") or "Pending"),
        message=str(state.get("message") or ""),
        run=given.get("run"),
        images=images,
        made=made,
        pods=_count_pods(shards),
        rate=rate,
        seconds_left=(images - made) / rate if rate and images is not None else None,
        started=cast("str | None", state.get("startedAt")),
        finished=cast("str | None", state.get("finishedAt")),
        failures=tuple(_step_failure(each) for each in tried if each[-1].phase in FAILED_PHASES),
        waits=_waiting_reason([each[-1] for each in tried]),
    )


def read_available_status(workflow: Json) -> WorkflowStatus:
    """The status of one workflow among others: without its counts where its nodes are not to be had."""
    try:
        return read_status(workflow)
    except BadInput:
        state = cast("Json", workflow["status"])
        return read_status({**workflow, "status": {**state, "offloadNodeStatusVersion": ""}})


def has_ended(workflow: Json) -> bool:
    """Whether nothing more will happen, without a look at the workflow's nodes."""
    return cast("Json", workflow.get("status") or {}).get("phase") in ENDED_PHASES


def _images_done(tried: Sequence[PodAttempt], share: float) -> float:
    """How many images a pod has made: what it said, and once it is done the share of the run that a pod has.

    Argo's own word of a pod that said nothing yet is 0/1, and 1/1 of one that ended soon after it had.
    """
    if tried[-1].phase == "Succeeded":
        return share
    return max(each.images_done for each in tried)


def _count_pods(shards: Sequence[Sequence[PodAttempt]]) -> PodCounts:
    phases = Counter(each[-1].phase for each in shards)
    return PodCounts(
        waiting=phases["Pending"],
        running=phases["Running"],
        done=phases["Succeeded"],
        failed=sum(phases[phase] for phase in FAILED_PHASES),
    )


def _waiting_reason(last: Sequence[PodAttempt]) -> str | None:
    if any(each.phase == "Running" for each in last):
        return None
    return next(
        (
            f"{each.step}: {each.message}"
            for each in last
            if each.phase == "Pending" and each.message
        ),
        None,
    )


def _image_rate(
    made: int, shards: Sequence[Sequence[PodAttempt]], finished: str | None
) -> float | None:
    began = min((each[0].started for each in shards if each[0].started), default=None)
    if not made or began is None:
        return None
    end = datetime.fromisoformat(finished) if finished else datetime.now(UTC)
    return made / max(1.0, (end - datetime.fromisoformat(began)).total_seconds())


def _step_failure(tried: Sequence[PodAttempt]) -> StepFailure:
    last = tried[-1]
    return StepFailure(last.step, last.shard, len(tried), last.message)
