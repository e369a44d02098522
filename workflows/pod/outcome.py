"""How it ended: a pod's termination message, and the workflow's exit handler with its webhook."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import requests

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.failures import root_cause_message

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes mounts it, in pods only
MAX_MESSAGE_BYTES = 2000
WEBHOOK_TIMEOUT = 20
WEBHOOK_ADVICE = "Correct Secret imagekiln-webhook."


@dataclass(frozen=True, slots=True)
class WorkflowOutcome:
    """How a workflow ended. `run` is None where it ended before planning finished."""

    workflow: str
    status: str
    run: str | None
    failures: str


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
        # JSON inside a JSON string; the null of a workflow without failures is dropped.
        failures=failures.strip('"').replace('\\"', '"').removeprefix("null"),
    )


def describe_outcome(outcome: WorkflowOutcome) -> str:
    """The outcome as text for the log."""
    text = f"{outcome.workflow}: {outcome.status}."
    if outcome.run:
        text += f" Dataset: {outcome.run}."
    if outcome.failures:
        text += f"\n{outcome.failures}"
    return text


def post_outcome(outcome: WorkflowOutcome, webhook: str) -> None:
    """Post the outcome as JSON.

    Raises BadInput where the webhook rejects it, TryAgain where it does not answer. No message
    shows the URL: whoever knows a webhook's URL may post to it.
    """
    if not webhook.startswith(("https://", "http://")):
        raise BadInput(
            f"the webhook's URL does not start with https:// or http://. {WEBHOOK_ADVICE}"
        )
    body = asdict(outcome)
    try:
        with requests.post(webhook, json=body, timeout=WEBHOOK_TIMEOUT, stream=True) as response:
            status = response.status_code
    except ValueError:  # from requests, or from urllib3 below it
        raise BadInput(f"the webhook's URL is not valid. {WEBHOOK_ADVICE}") from None
    except requests.RequestException as error:
        cause = root_cause_message(error)
        raise TryAgain(f"the webhook did not answer ({cause}). Run again.") from error

    if status >= 500 or status == 429:
        raise TryAgain(
            f"the webhook answered {status}. Run again, or check Secret imagekiln-webhook."
        )
    if not 200 <= status < 300:
        raise BadInput(f"the webhook answered {status}. {WEBHOOK_ADVICE}")
