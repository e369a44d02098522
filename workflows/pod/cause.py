"""The cause of a failed workflow, from the failed nodes that Argo lists for its exit handler."""

import json
import re

from imagekiln.workflows.client.stages import STAGES, is_finish_step
from imagekiln.workflows.client.step_failures import StepFailure, failure_cause

ATTEMPT_PATTERN = re.compile(r"^(.+)\((\d+)\)$")  # `shard(3:3)(0)` is the first of `shard(3:3)`
SHARD_PATTERN = re.compile(r"\(\d+:(\d+)\)$")


def find_cause(failures_json: str) -> str | None:
    """The cause in one line; None where no step of ours failed for good, or the list is cut off.

    A node that was retried is in the list beside its attempts, whose messages give the reasons.
    An attempt alone was made up for by a later one. Drawing a shard and its passes are two nodes
    of one name.
    """
    failed = [node for node in _read_nodes(failures_json) if _is_ours(node)]
    names = {_name(node) for node in failed}

    last_attempts: dict[tuple[str, bool], StepFailure] = {}
    for node in failed:
        match = ATTEMPT_PATTERN.match(_name(node))
        if match is None or match[1] not in names:
            continue
        step_name = match[1]
        failure = _to_failure(node, step_name, int(match[2]) + 1)
        key = (step_name, failure.follows_from_drawing)
        latest = last_attempts.get(key)
        if latest is None or latest.attempts < failure.attempts:
            last_attempts[key] = failure
    return failure_cause(list(last_attempts.values()))


def _to_failure(node: dict[str, object], step_name: str, attempts: int) -> StepFailure:
    """What the last of so many attempts left."""
    step = str(node["templateName"])
    # A pod that rewrites prompts has a number too, and no shard.
    shard = SHARD_PATTERN.search(step_name) if step == "generate" else None
    return StepFailure(
        step=step,
        shard=int(shard[1]) if shard else None,
        attempts=attempts,
        message=str(node.get("message") or ""),
    )


def _name(node: dict[str, object]) -> str:
    return str(node.get("displayName"))


def _read_nodes(failures_json: str) -> list[dict[str, object]]:
    try:
        nodes = json.loads(failures_json)
        if isinstance(nodes, str):  # a list inside a JSON string
            nodes = json.loads(nodes)
    except ValueError:
        return []
    return [node for node in nodes or () if isinstance(node, dict)]


def _is_ours(node: dict[str, object]) -> bool:
    step = str(node.get("templateName", ""))
    return step in STAGES and not is_finish_step(step)
