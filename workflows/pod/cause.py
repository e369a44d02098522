"""The cause of a failed workflow, from the failed nodes that Argo lists for its exit handler.

A long list reaches the handler cut off, and Argo lists nodes in no order: it is a part of them,
drawn at random.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace

from imagekiln.workflows.client.steps import STAGES, StepFailure, failure_cause, is_finish_step

ATTEMPT_PATTERN = re.compile(r"^(.+)\((\d+)\)$")  # `shard(3:3)(0)` is the first of `shard(3:3)`
SHARD_PATTERN = re.compile(r"\(\d+:(\d+)\)$")
# How Go quotes what JSON does not escape, or escapes in another way.
GO_ESCAPE = re.compile(r'\\(?:x([0-9a-f]{2})|U([0-9a-f]{8})|(["\\]))')


@dataclass(frozen=True, slots=True)
class FailedNodes:
    """Argo's list of failed nodes; of one that is cut off, those that are whole."""

    nodes: list[dict[str, object]]
    is_cut: bool


def read_failed_nodes(failures: str) -> FailedNodes:
    """Read the list as Argo writes it: JSON, which Go has quoted."""
    text = failures.strip()
    if text.startswith('"'):
        text = GO_ESCAPE.sub(_unquote, text[1:].removesuffix('"'))
    decoder = json.JSONDecoder()
    nodes: list[dict[str, object]] = []
    place = text.find("{")
    while place >= 0:
        try:
            node, end = decoder.raw_decode(text, place)
        except ValueError:
            return FailedNodes(nodes, is_cut=True)
        nodes.append(node)
        place = text.find("{", end)
    return FailedNodes(nodes, is_cut=text.startswith("[") and not text.endswith("]"))


def _unquote(escape: re.Match[str]) -> str:
    byte, point, character = escape.groups()
    return character or chr(int(byte or point, 16))


def find_cause(failed_nodes: FailedNodes) -> str | None:
    """The cause in one line; None where no step of ours failed for good.

    A node that was retried is in the list beside its attempts, whose messages give the reasons.
    An attempt alone was made up for by a later one. Drawing a shard and its passes are two nodes
    of one name. A list that is cut off says neither which attempts are alone nor how many shards
    failed: there, the cause is that of the step that failed most often.
    """
    failed = [node for node in failed_nodes.nodes if _is_ours(node)]
    names = {_name(node) for node in failed}

    last_attempts: dict[tuple[str, bool], StepFailure] = {}
    for node in failed:
        match = ATTEMPT_PATTERN.match(_name(node))
        if match is None or not (failed_nodes.is_cut or match[1] in names):
            continue
        step_name = match[1]
        failure = _to_failure(node, step_name, int(match[2]) + 1)
        key = (step_name, failure.follows_from_drawing)
        latest = last_attempts.get(key)
        if latest is None or latest.attempts < failure.attempts:
            last_attempts[key] = failure
    failures = list(last_attempts.values())
    return failure_cause(_commonest(failures) if failed_nodes.is_cut else failures)


def _commonest(failures: list[StepFailure]) -> list[StepFailure]:
    """The failures of the step that has most of them, without the numbers of shards."""
    steps = Counter(failure.step for failure in failures)
    commonest = max(steps, key=lambda step: steps[step], default="")
    return [replace(failure, shard=None) for failure in failures if failure.step == commonest]


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


def _is_ours(node: dict[str, object]) -> bool:
    step = str(node.get("templateName", ""))
    return step in STAGES and not is_finish_step(step)
