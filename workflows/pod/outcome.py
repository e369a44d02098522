"""Outcome of a workflow: the termination message of a pod, and the report of the exit handler."""

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from imagekiln.steps.errors import KilnError
from imagekiln.steps.runtime.sanitize import redact_secrets, truncate_text

if TYPE_CHECKING:  # every failing command imports this module
    from imagekiln.workflows.client.pods import StepFailure
    from imagekiln.workflows.pod.outputs import EndedWorkflow

TERMINATION_LOG = Path("/dev/termination-log")  # mounted by Kubernetes, in pods only
MAX_MESSAGE_BYTES = 2000
MAX_FAILURES = 10  # lines in a message that may be read on a phone
MAX_FAILURES_CHARS = 2000
# `shard(3:13)(0)` is the first attempt at `shard(3:13)`, which makes shard 13.
ATTEMPT_PATTERN = re.compile(r"^(.+?(?:\(\d+:(\d+)\))?)\((\d+)\)$")
# Go's escapes that JSON does not have, or has in another form.
GO_ESCAPE = re.compile(r'\\(?:x([0-9a-f]{2})|U([0-9a-f]{8})|(["\\]))')
# Variables with values that no message may show.
SECRET_VARIABLES = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "HF_TOKEN",
    "IMAGEKILN_C2PA_KEY",
    "IMAGEKILN_WEBHOOK",
    "IMAGEKILN_WEBHOOK_AUTHORIZATION",
)

Nodes = Sequence[Mapping[str, object]]


def read_failed_nodes(failures: str) -> tuple[Nodes, bool]:
    """Parse Argo's list of failed nodes, JSON quoted by Go, and return whether it is truncated.

    From a truncated list, complete nodes are returned.
    """
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
            return nodes, True
        nodes.append(node)
        place = text.find("{", end)
    return nodes, text.startswith("[") and not text.endswith("]")


def _unquote(escape: re.Match[str]) -> str:
    byte, point, character = escape.groups()
    return character or chr(int(byte or point, 16))


@dataclass(frozen=True, slots=True)
class WorkflowOutcome:
    """Outcome of a workflow.

    `run` and `images`, the number of planned images, are None if it ended before planning finished.
    `ok` is None if aggregation counted nothing. Otherwise, `images` excludes outscored candidates
    and images that were taken down. For a retry, both count all images of its run. `others` counts
    the images that are not ok, by status. `failures` has a line for each failed step, and `cause`
    is the failure that caused the others. `links` are the URLs of the workflow's page and its
    report, if they are known.
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
        """Return whether the workflow succeeded."""
        return self.status == "Succeeded"


def write_termination_message(message: str) -> None:
    """Write the reason of a failure where Kubernetes shows it. Outside of a pod, do nothing."""
    if TERMINATION_LOG.is_file():
        with suppress(OSError):  # the message is also in the log
            TERMINATION_LOG.write_bytes(message.encode()[:MAX_MESSAGE_BYTES])


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the credentials in a pod's environment."""
    return [environment[name].strip() for name in SECRET_VARIABLES if name in environment]


def ended_run(environment: Mapping[str, str]) -> str | None:
    """Return the workflow's run, also for a retry, without secrets; None if it is not planned."""
    from imagekiln.steps.runs.run import split_address
    from imagekiln.workflows.pod.outputs import set_value

    run = set_value(environment.get("IMAGEKILN_RUN", ""))
    if not run:
        return None
    with suppress(KilnError):  # if the store is down, the retry's address is enough
        run, _ = split_address(run)
    return redact_secrets(run, secret_values(environment))


def read_outcome(ended: "EndedWorkflow", environment: Mapping[str, str]) -> WorkflowOutcome:
    """Read the outcome of a workflow, with values of the environment, without secrets."""
    from imagekiln.workflows.client.pods import parse_figures
    from imagekiln.workflows.pod.outputs import set_value
    from imagekiln.workflows.templates.metrics import IMAGE_STATUSES

    secrets = secret_values(environment)
    failures = base64.b64decode(environment.get("IMAGEKILN_FAILURES", "")).decode(errors="replace")
    nodes, is_cut = read_failed_nodes(failures)
    lines = "\n".join(_failure_lines(nodes, is_cut=is_cut)) if nodes else failures
    run = ended_run(environment)
    figures = parse_figures(ended.figures)
    counts = {name: int(figures[name]) for name in IMAGE_STATUSES if figures.get(name)}
    uncounted = counts.get("outscored", 0) + counts.get("forgotten", 0)
    wanted = str(sum(counts.values()) - uncounted) if counts else set_value(ended.images)
    return WorkflowOutcome(
        workflow=ended.workflow,
        status=ended.status,
        run=run,
        failures=truncate_text(redact_secrets(lines, secrets), MAX_FAILURES_CHARS),
        cause=redact_secrets(find_cause(nodes, is_cut=is_cut) or "", secrets) or None,
        images=wanted or None,
        ok=str(counts.get("ok", 0)) if counts else None,
        others={status: images for status, images in counts.items() if status != "ok"},
        links=_read_links(environment, ended.workflow, ended.report_node if run else ""),
    )


def _read_links(environment: Mapping[str, str], workflow: str, node: str) -> dict[str, str]:
    """Return the links of a workflow, NAMESPACE/NAME, and of the report at this node, if any."""
    argo = environment.get("IMAGEKILN_ARGO_URL", "").strip().rstrip("/")
    links: dict[str, str] = {}
    if argo:
        links["Workflow"] = f"{argo}/workflows/{workflow}"
    if argo and node:
        namespace, _, name = workflow.partition("/")
        place = f"{namespace}/workflows/{name}/{name}-{_fnv1a(f'{name}.{node}')}"
        links["Report"] = f"{argo}/artifact-files/{place}/outputs/report/index.html"
    return links


def _fnv1a(string: str) -> int:
    """Return the 32-bit FNV-1a hash, by which Argo names a node."""
    value = 0x811C9DC5
    for byte in string.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _failure_lines(nodes: Nodes, *, is_cut: bool) -> list[str]:
    """Format Argo's list of failed steps as lines."""
    lines = [
        f"{node.get('displayName', '?')}: {node.get('message') or 'no message'}"
        for node in nodes[:MAX_FAILURES]
    ]
    if is_cut or len(nodes) > MAX_FAILURES:
        lines.append("... and more")
    return lines


def describe_outcome(outcome: WorkflowOutcome) -> str:
    """Format the outcome for the log or a chat."""
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


def find_cause(nodes: Nodes, *, is_cut: bool = False) -> str | None:
    """Return the cause in one line; None if none of our steps failed after all retries.

    A node that was retried is in the list beside its attempts, whose messages give the reasons. An
    attempt without its node was followed by a successful one. A truncated list shows neither such
    attempts nor the number of failed shards. In this case, the cause is from the step with the most
    failures.
    """
    from imagekiln.workflows.client.pods import STAGES, failure_cause, is_finish_step

    names = {str(node.get("displayName")) for node in nodes}
    latest: dict[str, StepFailure] = {}
    for node in nodes:
        step = str(node.get("templateName", ""))
        match = ATTEMPT_PATTERN.match(str(node.get("displayName")))
        if match is None or step not in STAGES or is_finish_step(step):
            continue
        if is_cut or match[1] in names:
            failure = _to_failure(node, step, match)
            latest[match[1]] = max(latest.get(match[1], failure), failure, key=_attempts)
    failures = list(latest.values())
    if is_cut and failures:
        ((step, _),) = Counter(failure.step for failure in failures).most_common(1)
        failures = [replace(failure, shard=None) for failure in failures if failure.step == step]
    return failure_cause(failures)


def _attempts(failure: "StepFailure") -> int:
    return failure.attempts


def _to_failure(node: Mapping[str, object], step: str, name: re.Match[str]) -> "StepFailure":
    from imagekiln.workflows.client.pods import StepFailure

    _, shard, attempt = name.groups()
    # Pods that rewrite prompts have numbers, but no shards.
    is_of_shard = step == "generate" and shard is not None
    return StepFailure(
        step=step,
        shard=int(shard) if is_of_shard else None,
        attempts=int(attempt) + 1,
        message=str(node.get("message") or ""),
    )
