"""The exit handler: how the workflow ended, in the log, and to a webhook where there is one."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import requests

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.failures import root_cause_message

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes' own name, there in pods only
MAX_MESSAGE_BYTES = 2000


def write_termination_message(sentence: str) -> None:
    """Say why the pod ends, where this is one."""
    if TERMINATION_LOG.is_file():
        with suppress(OSError):  # the sentence is in the log too
            TERMINATION_LOG.write_bytes(sentence.encode()[:MAX_MESSAGE_BYTES])


WEBHOOK_TIMEOUT = 20


@dataclass(frozen=True, slots=True)
class WorkflowOutcome:
    """How a workflow ended. `run` is None where planning did not get so far."""

    workflow: str
    status: str
    run: str | None
    failures: str


def outcome_from_environment(environment: Mapping[str, str]) -> WorkflowOutcome:
    """The outcome that the exit handler's template puts into the environment."""
    run = environment.get("IMAGEKILN_RUN", "")
    failures = base64.b64decode(environment.get("IMAGEKILN_FAILURES", "")).decode(errors="replace")
    return WorkflowOutcome(
        environment.get("IMAGEKILN_WORKFLOW", ""),
        environment.get("IMAGEKILN_STATUS", ""),
        None if not run or run.startswith("{{") else run,
        failures.strip('"').replace('\\"', '"').removeprefix("null"),
    )


def post_outcome(outcome: WorkflowOutcome, webhook: str) -> None:
    """Post the outcome as JSON. Raises BadInput where the webhook refuses it, TryAgain where it does not answer."""
    if not webhook.startswith(("https://", "http://")):
        raise BadInput(
            "the webhook's URL begins with neither https:// nor http://. Correct Secret imagekiln-webhook."
        )
    # No message shows the URL: whoever knows a webhook's may post to it.
    try:
        with requests.post(
            webhook, json=asdict(outcome), timeout=WEBHOOK_TIMEOUT, stream=True
        ) as answer:
            status = answer.status_code
    except ValueError:  # of requests and of urllib3, which it stands on
        raise BadInput(
            "the webhook's URL is no address. Correct Secret imagekiln-webhook."
        ) from None
    except requests.RequestException as error:
        raise TryAgain(
            f"the webhook did not answer ({root_cause_message(error)}). Run again."
        ) from error
    if status >= 500 or status == 429:
        raise TryAgain(f"the webhook answered {status}. Check Secret imagekiln-webhook.")
    if not 200 <= status < 300:
        raise BadInput(f"the webhook answered {status}. Check Secret imagekiln-webhook.")


def describe_outcome(outcome: WorkflowOutcome) -> str:
    """The outcome for people."""
    run = f" Dataset: {outcome.run}." if outcome.run else ""
    failures = f"\n{outcome.failures}" if outcome.failures else ""
    return f"{outcome.workflow}: {outcome.status}.{run}{failures}"
