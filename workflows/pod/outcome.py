"""How it ended: a pod's termination message, and what the workflow's exit handler reports."""

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from imagekiln.steps.errors import KilnError, StorageRefused
from imagekiln.steps.runtime.log_events import ATTEMPT_VARIABLE
from imagekiln.steps.runtime.sanitize import redact_secrets, truncate_text
from imagekiln.workflows.pod.cause import FailedNodes, find_cause, read_failed_nodes

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes mounts it, in pods only
MAX_MESSAGE_BYTES = 2000
MAX_FAILURES = 10  # lines of a message that somebody reads on a phone
MAX_FAILURES_CHARS = 2000
KEY_VARIABLE = "AWS_ACCESS_KEY_ID"
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
class WorkflowOutcome:
    """How a workflow ended.

    `run` is None where it ended before planning finished, and so is `images`, how many were
    planned; `ok` is None where aggregation counted nothing. Of a round of `retry`, both count
    all images of its run, and `others` those that are not ok, by status. `failures` has a line for
    each failed step, and `cause` is the one that the others follow from. `links` are the URLs of
    the workflow's page, its report and the runbook, if they are known.
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
        """Whether the workflow ended as it should."""
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


def outcome_from_environment(environment: Mapping[str, str]) -> WorkflowOutcome:
    """The outcome that the exit handler's template puts into the environment, without secrets."""
    from imagekiln.workflows.pod.run_metrics import count_images

    secrets = secret_values(environment)
    failures = base64.b64decode(environment.get("IMAGEKILN_FAILURES", "")).decode(errors="replace")
    failed_nodes = read_failed_nodes(failures)
    cause = find_cause(failed_nodes)
    workflow = environment.get("IMAGEKILN_WORKFLOW", "")
    run = _output(environment, "IMAGEKILN_RUN")
    counts = count_images(environment)
    return WorkflowOutcome(
        workflow=workflow,
        status=environment.get("IMAGEKILN_STATUS", ""),
        run=redact_secrets(run, secrets) if run else None,
        failures=truncate_text(
            redact_secrets(_list_failures(failures, failed_nodes), secrets), MAX_FAILURES_CHARS
        ),
        cause=redact_secrets(cause, secrets) if cause else None,
        images=_count_all(counts) or _output(environment, "IMAGEKILN_IMAGES"),
        ok=_count_ok(counts) or _output(environment, "IMAGEKILN_OK"),
        others={status: images for status, images in counts.items() if status != "ok"},
        links=_read_links(environment, workflow, planned=run is not None),
    )


def _read_links(environment: Mapping[str, str], workflow: str, *, planned: bool) -> dict[str, str]:
    """The links of a workflow, NAMESPACE/NAME. A run that was not planned has no report."""
    argo = environment.get("IMAGEKILN_ARGO_URL", "").strip().rstrip("/")
    node = environment.get("IMAGEKILN_REPORT_NODE", "")
    links: dict[str, str] = {}
    if argo:
        links["Workflow"] = f"{argo}/workflows/{workflow}"
    if argo and node and planned:
        namespace, _, name = workflow.partition("/")
        place = f"{namespace}/workflows/{name}/{name}-{_fnv1a(f'{name}.{node}')}"
        links["Report"] = f"{argo}/artifact-files/{place}/outputs/report/index.html"
    if runbook := environment.get("IMAGEKILN_RUNBOOK_URL", "").strip():
        links["Runbook"] = runbook
    return links


def _fnv1a(text: str) -> int:
    """The hash by which Argo names a node: FNV-1a of 32 bits."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _count_all(counts: Mapping[str, int]) -> str | None:
    """All images of the run; None where they are not counted by status."""
    if not counts:
        return None
    images = sum(counts.values())
    return str(images)


def _count_ok(counts: Mapping[str, int]) -> str | None:
    """The images that are ok, also of an incomplete run; None where none is counted by status."""
    return str(counts.get("ok", 0)) if counts else None


def _output(environment: Mapping[str, str], variable: str) -> str | None:
    """An output of the workflow; None where no step has set it."""
    text = environment.get(variable, "")
    is_set = text and not text.startswith("{{")  # Argo leaves its own variable in place
    return text if is_set else None


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
