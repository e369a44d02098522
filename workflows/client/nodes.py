"""A workflow's nodes, as the controller keeps them in its status."""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.objects import Json, object_metadata


@dataclass(frozen=True, slots=True)
class PodAttempt:
    """One pod of a step. `shard` is None in steps that make none; `done` of `planned` images are made."""

    step: str
    pod: str
    shard: int | None
    phase: str
    message: str
    started: str | None
    finished: str | None
    images_done: int = 0
    images_planned: int = 0


def pod_attempts(workflow: Json) -> Iterator[tuple[PodAttempt, ...]]:
    """For each pod that the workflow wants, the pods that were made for it, the last one last."""
    nodes = _read_nodes(workflow)
    name = str(object_metadata(workflow)["name"])
    tried = {
        child
        for node in nodes.values()
        if node["type"] == "Retry"
        for child in _text_list(node, "children")
    }
    for node in nodes.values():
        if node["type"] == "Retry":
            made = [nodes[child] for child in _text_list(node, "children") if child in nodes]
            yield tuple(_to_attempt(name, each) for each in made if each["type"] == "Pod") or (
                _to_attempt(name, node),
            )
        elif node["type"] == "Pod" and node["id"] not in tried:
            yield (_to_attempt(name, node),)


def plan_outputs(workflow: Json) -> dict[str, str]:
    """What the plan step gave: run, counts. Empty until it has."""
    for node in _read_nodes(workflow).values():
        if (
            node.get("templateName") == "plan"
            and node["type"] == "Pod"
            and node.get("phase") == "Succeeded"
        ):
            given = cast("Json", node.get("outputs") or {}).get("parameters") or []
            return {
                each["name"]: each["value"]
                for each in cast("list[dict[str, str]]", given)
                if "value" in each
            }
    return {}


def _read_nodes(workflow: Json) -> dict[str, Json]:
    status = cast("Json", workflow.get("status") or {})
    if packed := status.get("compressedNodes"):
        return cast(
            "dict[str, Json]", json.loads(zlib.decompress(base64.b64decode(str(packed)), 31))
        )
    if status.get("offloadNodeStatusVersion"):
        raise BadInput(
            f"{object_metadata(workflow)['name']}: its nodes are in Argo's database. Go by Argo's server: set ARGO_SERVER."
        )
    return cast("dict[str, Json]", status.get("nodes") or {})


def _to_attempt(workflow: str, node: Json) -> PodAttempt:
    step = str(node.get("templateName", ""))
    done, _, planned = str(node.get("progress", "0/0")).partition("/")
    counts = (int(done), int(planned)) if step == "generate" and node["type"] == "Pod" else (0, 0)
    return PodAttempt(
        step,
        # A pod is called by its workflow, its template and the hash that ends its node's id.
        f"{workflow}-{step}-{str(node['id']).rpartition('-')[2]}",
        _shard_parameter(node),
        str(node.get("phase", "Pending")),
        str(node.get("message", "")),
        cast("str | None", node.get("startedAt")),
        cast("str | None", node.get("finishedAt")),
        *counts,
    )


def _shard_parameter(node: Json) -> int | None:
    given = cast("Mapping[str, object]", node.get("inputs") or {}).get("parameters") or []
    found = [
        each["value"] for each in cast("list[dict[str, str]]", given) if each["name"] == "shard"
    ]
    return int(found[0]) if found else None


def _text_list(node: Json, key: str) -> list[str]:
    return cast("list[str]", node.get(key) or [])
