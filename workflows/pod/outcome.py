"""How it ended: a pod's termination message, and what the workflow's exit handler reports."""

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagekiln.workflows.pod.cause import find_cause

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes mounts it, in pods only
MAX_MESSAGE_BYTES = 2000


@dataclass(frozen=True, slots=True)
class WorkflowOutcome:
    """How a workflow ended. `run` is None where it ended before planning finished.

    `failures` has a line for each failed step, and `cause` is the one that the others follow from.
    """

    workflow: str
    status: str
    run: str | None
    failures: str
    cause: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the workflow ended as it should."""
        return self.status == "Succeeded"


def write_termination_message(message: str) -> None:
    """Leave the reason of a failure where Kubernetes shows it; outside of a pod, do nothing."""
    if TERMINATION_LOG.is_file():
        with suppress(OSError):  # the log has the message too
            TERMINATION_LOG.write_bytes(message.encode()[:MAX_MESSAGE_BYTES])


def outcome_from_environment(environment: Mapping[str, str]) -> WorkflowOutcome:
    """The outcome that the exit handler's template puts into the environment."""
    run = environment.get("IMAGEKILN_RUN", "")
    if run.startswith("{{"):  # Argo leaves a variable in place that no step has set
        run = ""
    failures = base64.b64decode(environment.get("IMAGEKILN_FAILURES", "")).decode(errors="replace")
    return WorkflowOutcome(
        workflow=environment.get("IMAGEKILN_WORKFLOW", ""),
        status=environment.get("IMAGEKILN_STATUS", ""),
        run=run or None,
        failures=_list_failures(failures),
        cause=find_cause(failures),
    )


def _list_failures(text: str) -> str:
    """Argo's list of failed steps as lines, or as it came where it is cut off."""
    try:
        failures = json.loads(text)
        if isinstance(failures, str):  # a list inside a JSON string
            failures = json.loads(failures)
    except ValueError:
        return text
    if not isinstance(failures, list):
        return ""
    lines = (
        f"{failure.get('displayName', '?')}: {failure.get('message') or 'no message'}"
        for failure in failures
        if isinstance(failure, dict)
    )
    return "\n".join(lines)


def describe_outcome(outcome: WorkflowOutcome) -> str:
    """The outcome as text for the log or a chat."""
    text = f"{outcome.workflow}: {outcome.status}."
    if outcome.run:
        text += f" Dataset: {outcome.run}."
    if outcome.failures:
        text += f"\n{outcome.failures}"
    if outcome.cause:
        text += f"\nCause: {outcome.cause}"
    return text
