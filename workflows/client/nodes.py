"""A workflow's pods and step outputs, from the nodes that the controller keeps in its status."""

import base64
import gzip
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.objects import Json, object_metadata
from imagekiln.workflows.templates.metrics import IMAGE_STATUSES, SPENT_FIGURES
from imagekiln.workflows.templates.pod_retries import FINAL_EXIT_CODES

# What Argo fills in for a pod whose progress it has not read is no count: 0/1, then 1/1.
UNREAD_PROGRESS = 1
ENDED_PHASES = ("Succeeded", "Failed", "Error")


@dataclass(frozen=True, slots=True)
class PodAttempt:
    """One pod of a step. `shard` is None unless the step is generate.

    `images` are those that it is to make, as far as Argo has read its progress: 0 before that.
    `next_attempt` is what Argo says of the next one where this one failed and another will come.
    """

    step: str
    pod: str
    shard: int | None
    phase: str
    message: str
    started: str | None
    finished: str | None = None
    images_done: int = 0
    images: int = 0
    next_attempt: str | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether this pod, or the one after it, has not started."""
        return self.phase == "Pending" or self.next_attempt is not None


def pod_attempts(workflow: Json) -> Iterator[tuple[PodAttempt, ...]]:
    """Yield the attempts at each pod that the workflow needs, the latest one last."""
    workflow_name = str(object_metadata(workflow)["name"])
    for node, pods in _pods_by_node(_read_nodes(workflow)):
        if node["type"] == "Retry":
            yield _retry_attempts(node, pods, workflow_name)
        else:
            yield (_to_attempt(node, workflow_name),)


def pending_groups(workflow: Json) -> Iterator[PodAttempt]:
    """The DAGs that wait as a whole, such as for a mutex, each as one attempt of its task."""
    workflow_name = str(object_metadata(workflow)["name"])
    for node in _read_nodes(workflow).values():
        if node["type"] == "DAG" and node.get("phase") == "Pending":
            attempt = _to_attempt(node, workflow_name)
            yield replace(attempt, step=str(node.get("displayName", "")))


def plan_outputs(workflow: Json) -> dict[str, str]:
    """The output parameters of the plan step, such as run and images; empty until it succeeds."""
    for node in _read_nodes(workflow).values():
        is_plan = node["type"] == "Pod" and node.get("templateName") == "plan"
        if is_plan and node.get("phase") == "Succeeded":
            return _parameters(node, "outputs")
    return {}


def aggregate_figures(workflow: Json) -> dict[str, float]:
    """Return the counts of the workflow: images by status, spent seconds by use, and `cost`.

    All attempts at an aggregation count the same: the figures are those of the latest one that left
    any. What was spent adds up over aggregations, and the images are of the last.
    """
    sums: dict[str, float] = {}
    for node, pods in _pods_by_node(_read_nodes(workflow)):
        latest: dict[str, float] = {}
        for pod in pods if node.get("templateName") == "aggregate" else ():
            latest = _pod_figures(pod) or latest
        spent = {name: sums.get(name, 0.0) for name in SPENT_FIGURES if name in latest}
        sums |= latest
        sums |= {name: before + latest[name] for name, before in spent.items()}
    return sums


def _pod_figures(pod: Json) -> dict[str, float]:
    """The figures that a pod of `aggregate` left."""
    figures: object = {}
    with suppress(ValueError):
        figures = json.loads(_parameters(pod, "outputs").get("figures", "{}"))
    amounts: dict[str, float] = {}
    if isinstance(figures, dict):
        for name in (*IMAGE_STATUSES, *SPENT_FIGURES):
            amount = figures.get(name)
            if isinstance(amount, int | float) and math.isfinite(amount):
                amounts[name] = amount
    return amounts


def _read_nodes(workflow: Json) -> dict[str, Json]:
    """The nodes by id. Raises BadInput if Argo keeps them in its database."""
    status = cast("Json", workflow.get("status") or {})
    compressed = status.get("compressedNodes")
    if compressed:
        data = base64.b64decode(str(compressed))
        return cast("dict[str, Json]", json.loads(gzip.decompress(data)))
    if status.get("offloadNodeStatusVersion"):
        name = object_metadata(workflow)["name"]
        raise BadInput(
            f"{name}: Argo keeps its nodes in a database, which only "
            "Argo's server can read. Set ARGO_SERVER."
        )
    return cast("dict[str, Json]", status.get("nodes") or {})


def _pods_by_node(nodes: Mapping[str, Json]) -> Iterator[tuple[Json, list[Json]]]:
    """Yield Retry nodes with their pods, the latest one last, and pods that are under none."""
    retried_ids: set[str] = set()
    for node in nodes.values():
        if node["type"] == "Retry":
            retried_ids.update(_child_ids(node))

    for node in nodes.values():
        if node["type"] == "Retry":
            children = [nodes[child] for child in _child_ids(node) if child in nodes]
            yield node, [child for child in children if child["type"] == "Pod"]
        elif node["type"] == "Pod" and node["id"] not in retried_ids:
            yield node, [node]


def _retry_attempts(
    retry_node: Json, pods: list[Json], workflow_name: str
) -> tuple[PodAttempt, ...]:
    """The pods under a Retry node; before the first of them, the Retry node itself."""
    if not pods:
        return (_to_attempt(retry_node, workflow_name),)
    *earlier, last = (_to_attempt(pod, workflow_name) for pod in pods)
    has_failed = last.phase in ENDED_PHASES and last.phase != "Succeeded"
    is_final = _exit_code(pods[-1]) in FINAL_EXIT_CODES
    if has_failed and not is_final and retry_node.get("phase") not in ENDED_PHASES:
        last = replace(last, next_attempt=str(retry_node.get("message", "")))
    return (*earlier, last)


def _exit_code(node: Json) -> str:
    """The exit code by which Argo decides on another attempt; empty if it has none.

    The message may name that of another container, such as `init`.
    """
    outputs = cast("Mapping[str, object]", node.get("outputs") or {})
    return str(outputs.get("exitCode", ""))


def _to_attempt(node: Json, workflow_name: str) -> PodAttempt:
    step = str(node.get("templateName", ""))
    images_done, images = 0, 0
    if step == "generate" and node["type"] == "Pod":
        done, _, total = str(node.get("progress", "0/0")).partition("/")
        images_done, images = int(done), int(total)
    inputs = _parameters(node, "inputs")
    shard = inputs.get("shard")

    # Argo names a pod by its workflow, its template and the hash that ends its node's id.
    digest = str(node["id"]).rpartition("-")[2]
    return PodAttempt(
        step=step,
        pod=f"{workflow_name}-{step}-{digest}",
        shard=None if shard is None else int(shard),
        phase=str(node.get("phase", "Pending")),
        message=str(node.get("message", "")),
        started=cast("str | None", node.get("startedAt")),
        finished=cast("str | None", node.get("finishedAt")),
        images_done=images_done,
        images=0 if images == UNREAD_PROGRESS else images,
    )


def _parameters(node: Json, side: str) -> dict[str, str]:
    """A node's input or output parameters that have a value."""
    section = cast("Mapping[str, object]", node.get(side) or {})
    parameters = cast("list[dict[str, str]]", section.get("parameters") or [])
    values: dict[str, str] = {}
    for parameter in parameters:
        if "value" in parameter:
            values[parameter["name"]] = str(parameter["value"])
    return values


def _child_ids(node: Json) -> list[str]:
    children = node.get("children") or []
    return cast("list[str]", children)
