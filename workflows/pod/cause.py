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
    An attempt alone was made up for by a later one.
    """
    failed = [node for node in _read_nodes(failures_json) if _is_ours(node)]
    names = {str(node.get("displayName")) for node in failed}
    failures: dict[str, StepFailure] = {}
    for node in failed:
        match = ATTEMPT_PATTERN.match(str(node.get("displayName")))
        if match is None or match[1] not in names:
            continue
        name = match[1]
        attempts = int(match[2]) + 1
        if name not in failures or failures[name].attempts < attempts:
            shard = SHARD_PATTERN.search(name)
            number = int(shard[1]) if shard else None
            message = str(node.get("message") or "")
            failures[name] = StepFailure(str(node["templateName"]), number, attempts, message)
    return failure_cause(list(failures.values()))


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
