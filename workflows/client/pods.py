"""Pods of a workflow and the reasons of their failures, from the nodes in Argo's status."""

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.objects import Json, get_list, get_mapping, get_mappings, object_name
from imagekiln.workflows.templates.metrics import IMAGE_STATUSES, SPENT_FIGURES
from imagekiln.workflows.templates.pod_retries import FINAL_EXIT_CODES

Stage = Literal["rewrite", "plan", "fetch", "generate", "aggregate", "export", "report"]

# By template, in the order of a workflow.
STAGES: dict[str, Stage] = {
    "fetch-language-model": "rewrite",
    "rewrite": "rewrite",
    "plan": "plan",
    "fetch": "fetch",
    "generate": "generate",
    "further-one": "generate",
    "aggregate": "aggregate",
    "export": "export",
    "report": "report",
    "publish-report": "report",
}
STEP_ORDER = list(STAGES)
ENDED_PHASES = ("Succeeded", "Failed", "Error")
FAILED_PHASES = ("Failed", "Error")
UNREAD_TOTAL = "1"  # in the progress of a pod that Argo has not read: 0/1, then 1/1
EXIT_CODE_PATTERN = re.compile(r"exit code (\d+)")
# Argo's prefix of a pod's message, such as `main: Error (exit code 75): `.
CONTAINER_PREFIX = re.compile(r"^(?:main|wait|init|supervisor): \w+ \(exit code \d+\): ")
SHUTDOWN_MESSAGE = "workflow shutdown with strategy"  # on pods that a stop ended or prevented
STOPPED = "somebody stopped the workflow"
MAX_NUMBERS = 5  # shards listed in a cause


@dataclass(frozen=True, slots=True)
class PodAttempt:
    """One pod of a step. `shard` is None unless the step is generate.

    `images_done` is its progress, as last read by Argo. `next_attempt` is Argo's message about the
    next attempt, if this one failed and will be retried.
    """

    step: str
    pod: str
    shard: int | None
    phase: str
    message: str
    started: str | None
    finished: str | None = None
    images_done: int = 0
    next_attempt: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_waiting(self) -> bool:
        """Return whether this pod or its next attempt has not started."""
        return self.phase == "Pending" or self.next_attempt is not None


Attempts = Sequence[PodAttempt]  # attempts at one pod, the latest last


def pod_attempts(workflow: Json) -> Iterator[Attempts]:
    """Yield the attempts at each pod that the workflow needs, the latest last.

    Raises BadInput if Argo keeps the nodes in its database.
    """
    nodes = _read_nodes(workflow)
    retries = [node for node in nodes.values() if node["type"] == "Retry"]
    children = {str(node["id"]): get_list(node, "children") for node in retries}
    retried = {child for ids in children.values() for child in ids}
    for node in nodes.values():
        if node["type"] == "Retry":
            pods = [nodes[str(child)] for child in children[str(node["id"])] if child in nodes]
            yield _retry_attempts(workflow, node, [pod for pod in pods if pod["type"] == "Pod"])
        elif node["type"] == "Pod" and node["id"] not in retried:
            yield (_to_attempt(workflow, node),)


def pending_groups(workflow: Json) -> list[PodAttempt]:
    """Return the DAGs that wait as a whole, for example for a mutex, as attempts at their tasks."""
    return [
        replace(_to_attempt(workflow, node), step=str(node.get("displayName", "")))
        for node in _read_nodes(workflow).values()
        if node["type"] == "DAG" and node.get("phase") == "Pending"
    ]


def step_outputs(pods: Iterable[Attempts], step: str) -> Mapping[str, str]:
    """Return the output parameters of a step, from its latest attempt with outputs."""
    outputs: Mapping[str, str] = {}
    for attempts in pods:
        for attempt in attempts:
            if attempt.step == step:
                outputs = attempt.outputs or outputs
    return outputs


def parse_figures(text: str) -> dict[str, float]:
    """Parse the counts of `aggregate`: images by status, device-seconds by use, and `cost`.

    Empty if the step did not write them, since Argo then leaves its own variable.
    """
    figures: object = None
    with suppress(ValueError):
        figures = json.loads(text)
    names = (*IMAGE_STATUSES, *SPENT_FIGURES)
    return {
        name: value
        for name, value in get_mapping(figures).items()
        if name in names and isinstance(value, int | float)
    }


def _read_nodes(workflow: Json) -> dict[str, Json]:
    """Return the nodes by id. Raises BadInput if Argo keeps them in its database."""
    status = get_mapping(workflow, "status")
    compressed = status.get("compressedNodes")
    if compressed:
        data = base64.b64decode(str(compressed))
        return cast("dict[str, Json]", json.loads(gzip.decompress(data)))
    if status.get("offloadNodeStatusVersion"):
        raise BadInput(
            f"{object_name(workflow)}: Argo keeps its nodes in a database, which only "
            "Argo's server can read. Set ARGO_SERVER."
        )
    return cast("dict[str, Json]", status.get("nodes") or {})


def _retry_attempts(workflow: Json, retry_node: Json, pods: list[Json]) -> Attempts:
    """Return the pods under a Retry node, or the Retry node itself before the first pod."""
    if not pods:
        return (_to_attempt(workflow, retry_node),)
    *earlier, last = (_to_attempt(workflow, pod) for pod in pods)
    # Argo decides by this code. The message may have the code of another container, such as `init`.
    exit_code = str(get_mapping(pods[-1], "outputs").get("exitCode", ""))
    is_retried = last.phase in FAILED_PHASES and exit_code not in FINAL_EXIT_CODES
    if is_retried and retry_node.get("phase") not in ENDED_PHASES:
        last = replace(last, next_attempt=str(retry_node.get("message", "")))
    return (*earlier, last)


def _to_attempt(workflow: Json, node: Json) -> PodAttempt:
    step = str(node.get("templateName", ""))
    done, _, total = str(node.get("progress", "0/0")).partition("/")
    has_progress = step == "generate" and total != UNREAD_TOTAL
    shard = _parameters(node, "inputs").get("shard")
    # Argo builds a pod's name from its workflow, its template and the hash that ends its node's id.
    digest = str(node["id"]).rpartition("-")[2]
    return PodAttempt(
        step=step,
        pod=f"{object_name(workflow)}-{step}-{digest}",
        shard=None if shard is None else int(shard),
        phase=str(node.get("phase", "Pending")),
        message=str(node.get("message", "")),
        started=cast("str | None", node.get("startedAt")),
        finished=cast("str | None", node.get("finishedAt")),
        images_done=int(done) if has_progress else 0,
        outputs=_parameters(node, "outputs"),
    )


def _parameters(node: Json, side: str) -> dict[str, str]:
    """Return the input or output parameters of a node that have a value."""
    parameters = get_mappings(node, side, "parameters")
    return {str(each["name"]): str(each["value"]) for each in parameters if "value" in each}


@dataclass(frozen=True, slots=True)
class StepFailure:
    """A step that failed after its last attempt, with the message of that attempt's pod."""

    step: str
    shard: int | None
    attempts: int
    message: str

    @property
    def exit_code(self) -> int | None:
        """The pod's exit code, if Argo's message names one."""
        match = EXIT_CODE_PATTERN.search(self.message)
        return int(match[1]) if match else None

    @property
    def was_stopped(self) -> bool:
        """Return whether the step ended because somebody stopped the workflow."""
        return SHUTDOWN_MESSAGE in self.message

    @property
    def reason(self) -> str:
        """The message in one line, without the prefix that Argo adds."""
        if self.was_stopped:
            return STOPPED
        lines = CONTAINER_PREFIX.sub("", self.message.strip()).splitlines()
        return lines[0] if lines else "no message"


def failure_cause(failures: Sequence[StepFailure]) -> str | None:
    """Return the cause in one line: the most common reason of the first step that failed.

    Later failures follow from it, such as aggregate's for missing images. A stop also ends running
    steps after another failure.
    """
    failures = [failure for failure in failures if not failure.was_stopped] or failures
    if not failures:
        return None
    step = min((failure.step for failure in failures), key=step_order)
    failures = [failure for failure in failures if failure.step == step]
    ((reason, _),) = Counter(failure.reason for failure in failures).most_common(1)
    shards = [failure.shard for failure in failures if failure.reason == reason]
    return f"{step}{_of_shards([shard for shard in shards if shard is not None])}: {reason}"


def _of_shards(shards: Sequence[int]) -> str:
    if not shards:
        return ""
    if len(shards) > MAX_NUMBERS:
        return f" of {len(shards)} shards"
    noun = "shard" if len(shards) == 1 else "shards"
    return f" of {noun} {', '.join(map(str, sorted(shards)))}"


def is_finish_step(step: str) -> bool:
    """Return whether a step is in the exit handler, whose failure does not fail the workflow."""
    return STAGES.get(step) == "report"


def step_order(step: str) -> int:
    """Return the position of a step in a workflow; unknown steps come last."""
    return STEP_ORDER.index(step) if step in STAGES else len(STEP_ORDER)
