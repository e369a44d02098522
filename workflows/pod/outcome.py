"""How it ended: a pod's termination message, and what the workflow's exit handler reports."""

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from imagekiln.steps.errors import KilnError, StorageRefused
from imagekiln.steps.runtime.log_events import ATTEMPT_VARIABLE
from imagekiln.steps.runtime.sanitize import redact_secrets, truncate_text
from imagekiln.workflows.pod.cause import FailedNodes, find_cause, read_failed_nodes
from imagekiln.workflows.pod.links import Links, find_links

if TYPE_CHECKING:
    from imagekiln.workflows.pod.run_metrics import EndedWorkflow

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
    each failed step, and `cause` is the one that the others follow from.
    """

    workflow: str
    status: str
    run: str | None = None
    failures: str = ""
    cause: str | None = None
    images: str | None = None
    ok: str | None = None
    others: Mapping[str, int] = field(default_factory=dict)
    links: Links = field(default_factory=Links)

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


def ended_run(environment: Mapping[str, str]) -> str | None:
    """The run of the ended workflow, without secrets; None if planning did not finish."""
    from imagekiln.workflows.pod.run_metrics import is_variable

    run = environment.get("IMAGEKILN_RUN", "")
    if not run or is_variable(run):
        return None
    return redact_secrets(run, secret_values(environment))


def read_outcome(ended: "EndedWorkflow", environment: Mapping[str, str]) -> WorkflowOutcome:
    """How a workflow ended: its facts, and what the environment has of texts, without secrets."""
    from imagekiln.workflows.pod.run_metrics import count_images, is_variable

    secrets = secret_values(environment)
    failures = base64.b64decode(environment.get("IMAGEKILN_FAILURES", "")).decode(errors="replace")
    failed_nodes = read_failed_nodes(failures)
    cause = find_cause(failed_nodes)
    run = ended_run(environment)
    counts = count_images(ended)
    planned = None if is_variable(ended.images) else ended.images or None
    return WorkflowOutcome(
        workflow=ended.workflow,
        status=ended.status,
        run=run,
        failures=truncate_text(
            redact_secrets(_list_failures(failures, failed_nodes), secrets), MAX_FAILURES_CHARS
        ),
        cause=redact_secrets(cause, secrets) if cause else None,
        images=str(sum(counts.values())) if counts else planned,
        ok=str(counts.get("ok", 0)) if counts else None,
        others={status: images for status, images in counts.items() if status != "ok"},
        links=find_links(environment, ended.workflow, ended.report_node if run else ""),
    )


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
