"""The end of a workflow: a pod's termination message, and the exit handler's report."""

import base64
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagekiln.steps.errors import KilnError, StorageRefused
from imagekiln.steps.runtime.machine import ATTEMPT_VARIABLE
from imagekiln.steps.runtime.sanitize import redact_secrets, truncate_text
from imagekiln.workflows.client.pods import STAGES, StepFailure, failure_cause, is_finish_step

if TYPE_CHECKING:
    from imagekiln.workflows.pod.run_metrics import EndedWorkflow

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes mounts it, in pods only
MAX_MESSAGE_BYTES = 2000
MAX_FAILURES = 10  # lines of a message that somebody reads on a phone
MAX_FAILURES_CHARS = 2000
KEY_VARIABLE = "AWS_ACCESS_KEY_ID"
ATTEMPT_PATTERN = re.compile(r"^(.+)\((\d+)\)$")  # `shard(3:3)(0)` is the first of `shard(3:3)`
SHARD_PATTERN = re.compile(r"\(\d+:(\d+)\)$")
# How Go quotes what JSON does not escape, or escapes in another way.
GO_ESCAPE = re.compile(r'\\(?:x([0-9a-f]{2})|U([0-9a-f]{8})|(["\\]))')
# Variables whose values no message shows.
SECRET_VARIABLES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
    "IMAGEKILN_C2PA_KEY",
    "IMAGEKILN_WEBHOOK",
    "IMAGEKILN_WEBHOOK_AUTHORIZATION",
)


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


@dataclass(frozen=True, slots=True)
class WorkflowOutcome:
    """Tell how a workflow ended.

    `run` is None if it ended before planning finished, and so is `images`, how many were
    planned; `ok` is None if aggregation counted nothing. Then `images` are without those that
    lost or were taken down. Of a retry, both count all images of its run, and `others` those that
    are not ok, by status. `failures` has a line for each failed step, and `cause` is
    the one that the others follow from. `links` are the URLs of the workflow's page and its report,
    if they are known.
    """

    workflow: str
    status: str
    run: str | None = None
    failures: str = ""
    cause: str | None = None
    images: str | None = None
    ok: str | None = None
    others: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Return whether the workflow ended as it should."""
        return self.status == "Succeeded"


def write_termination_message(message: str) -> None:
    """Leave the reason of a failure where Kubernetes shows it; outside of a pod, do nothing."""
    if TERMINATION_LOG.is_file():
        with suppress(OSError):  # the log has the message too
            TERMINATION_LOG.write_bytes(message.encode()[:MAX_MESSAGE_BYTES])


def explain_in_pod(error: KilnError, environment: Mapping[str, str] = os.environ) -> str:
    """The message of a failure; where a store refused the pod's key, with the Secret it is from."""
    is_refused = isinstance(error, StorageRefused) and isinstance(error.__cause__, PermissionError)
    is_in_pod = ATTEMPT_VARIABLE in environment
    if not (is_refused and is_in_pod and environment.get(KEY_VARIABLE)):
        return str(error)
    from imagekiln.workflows.templates.pod import STORAGE_SECRETS

    secret, _ = STORAGE_SECRETS[KEY_VARIABLE]
    return f"{error} The pod has its key from Secret {secret}."


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """The credentials that a pod has in its environment."""
    return [environment[name].strip() for name in SECRET_VARIABLES if name in environment]


def ended_run(environment: Mapping[str, str]) -> str | None:
    """The run of the ended workflow, also of a retry, without secrets; None if it has no plan."""
    from imagekiln.steps.runs.run import split_address
    from imagekiln.workflows.pod.run_metrics import is_variable

    run = environment.get("IMAGEKILN_RUN", "")
    if not run or is_variable(run):
        return None
    with suppress(KilnError):  # a retry's address says enough if the store is down
        run, _ = split_address(run)
    return redact_secrets(run, secret_values(environment))


def read_outcome(ended: "EndedWorkflow", environment: Mapping[str, str]) -> WorkflowOutcome:
    """Return how a workflow ended, with texts of the environment, without secrets."""
    from imagekiln.workflows.pod.run_metrics import count_images, is_variable

    secrets = secret_values(environment)
    failures = base64.b64decode(environment.get("IMAGEKILN_FAILURES", "")).decode(errors="replace")
    failed_nodes = read_failed_nodes(failures)
    cause = find_cause(failed_nodes)
    run = ended_run(environment)
    counts = count_images(ended)
    wanted = sum(counts.values())
    wanted -= counts.get("outscored", 0)
    wanted -= counts.get("forgotten", 0)
    planned = None if is_variable(ended.images) else ended.images or None
    return WorkflowOutcome(
        workflow=ended.workflow,
        status=ended.status,
        run=run,
        failures=truncate_text(
            redact_secrets(_list_failures(failures, failed_nodes), secrets), MAX_FAILURES_CHARS
        ),
        cause=redact_secrets(cause, secrets) if cause else None,
        images=str(wanted) if counts else planned,
        ok=str(counts.get("ok", 0)) if counts else None,
        others={status: images for status, images in counts.items() if status != "ok"},
        links=_read_links(environment, ended.workflow, ended.report_node if run else ""),
    )


def _read_links(environment: Mapping[str, str], workflow: str, node: str) -> dict[str, str]:
    """The links of a workflow, NAMESPACE/NAME, whose report is at this node if it has one."""
    argo = environment.get("IMAGEKILN_ARGO_URL", "").strip().rstrip("/")
    links: dict[str, str] = {}
    if argo:
        links["Workflow"] = f"{argo}/workflows/{workflow}"
    if argo and node:
        namespace, _, name = workflow.partition("/")
        place = f"{namespace}/workflows/{name}/{name}-{_fnv1a(f'{name}.{node}')}"
        links["Report"] = f"{argo}/artifact-files/{place}/outputs/report/index.html"
    return links


def _fnv1a(text: str) -> int:
    """The hash by which Argo names a node: FNV-1a of 32 bits."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _list_failures(text: str, failed_nodes: FailedNodes) -> str:
    """Argo's list of failed steps as lines, or as it came where none of them is whole."""
    if failed_nodes.is_cut and not failed_nodes.nodes:
        return text
    lines = [
        f"{node.get('displayName', '?')}: {node.get('message') or 'no message'}"
        for node in failed_nodes.nodes
    ]
    rest = len(lines) - MAX_FAILURES
    if rest > 0:
        at_least = "at least " if failed_nodes.is_cut else ""
        lines[MAX_FAILURES:] = [f"... and {at_least}{rest} more"]
    elif failed_nodes.is_cut:
        lines.append("... and more")
    return "\n".join(lines)


def describe_outcome(outcome: WorkflowOutcome) -> str:
    """The outcome as text for the log or a chat."""
    text = f"{outcome.workflow}: {outcome.status}."
    if outcome.ok and outcome.images:
        text += f" {outcome.ok} of {outcome.images} images are ok"
        for status, images in outcome.others.items():
            text += f", {images} {status}"
        text += "."
    if outcome.run:
        text += f" Dataset: {outcome.run}."
    if outcome.cause:
        text += f"\nCause: {outcome.cause}"
    if outcome.failures:
        text += f"\n{outcome.failures}"
    for name, url in outcome.links.items():
        text += f"\n{name}: {url}"
    return text


def find_cause(failed_nodes: FailedNodes) -> str | None:
    """The cause in one line; None if no step of ours failed for good.

    A node that was retried is in the list beside its attempts, whose messages give the reasons.
    An attempt alone was made up for by a later one. A list that is cut off says neither which
    attempts are alone nor how many shards failed: there, the cause is that of the step that failed
    most often.
    """
    failed = [node for node in failed_nodes.nodes if _is_ours(node)]
    names = {_name(node) for node in failed}

    last_attempts: dict[str, StepFailure] = {}
    for node in failed:
        match = ATTEMPT_PATTERN.match(_name(node))
        if match is None:
            continue
        step_name, attempt = match.groups()
        if not failed_nodes.is_cut and step_name not in names:
            continue
        failure = _to_failure(node, step_name, int(attempt) + 1)
        latest = last_attempts.get(step_name)
        if latest is None or latest.attempts < failure.attempts:
            last_attempts[step_name] = failure
    failures = list(last_attempts.values())
    if failed_nodes.is_cut:
        failures = _commonest(failures)
    return failure_cause(failures)


def _commonest(failures: list[StepFailure]) -> list[StepFailure]:
    """The failures of the step that has most of them, without the numbers of shards."""
    steps = Counter(failure.step for failure in failures)
    commonest = max(steps, key=lambda step: steps[step], default="")
    return [replace(failure, shard=None) for failure in failures if failure.step == commonest]


def _to_failure(node: dict[str, object], step_name: str, attempts: int) -> StepFailure:
    """Return the failure of the last of so many attempts."""
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
