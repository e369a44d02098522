"""The exit handler: how the workflow ended, in the log, and to a webhook where there is one."""

import base64
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.error import URLError

from imagekiln.steps.errors import BadInput, TryAgain

SECONDS = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a workflow ended. `run` is None where planning did not get so far."""

    workflow: str
    status: str
    run: str | None
    failures: str


def in_environment(environment: Mapping[str, str]) -> Outcome:
    """The outcome that the exit handler's template puts into the environment."""
    run = environment.get("IMAGEKILN_RUN", "")
    failures = base64.b64decode(environment.get("IMAGEKILN_FAILURES", "")).decode(errors="replace")
    return Outcome(
        environment.get("IMAGEKILN_WORKFLOW", ""),
        environment.get("IMAGEKILN_STATUS", ""),
        None if not run or run.startswith("{{") else run,
        failures.strip('"').replace('\\"', '"').removeprefix("null"),
    )


def tell(outcome: Outcome, webhook: str) -> None:
    """Post the outcome as JSON. Raises BadInput where the webhook refuses it, TryAgain where it does not answer."""
    if not webhook.startswith(("https://", "http://")):
        raise BadInput("the webhook's URL begins with neither https:// nor http://. Correct Secret imagekiln-webhook.")
    body = json.dumps(asdict(outcome)).encode()
    request = urllib.request.Request(webhook, body, {"Content-Type": "application/json"})  # noqa: S310  # checked above
    try:
        with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310  # as above
            pass
    except urllib.error.HTTPError as error:
        kind = TryAgain if error.code >= 500 or error.code == 429 else BadInput
        raise kind(f"the webhook answered {error.code}. Check Secret imagekiln-webhook.") from error
    except (URLError, OSError) as error:
        raise TryAgain(f"the webhook did not answer ({error}). Run again.") from error


def sentence(outcome: Outcome) -> str:
    """The outcome for people."""
    run = f" Dataset: {outcome.run}." if outcome.run else ""
    failures = f"\n{outcome.failures}" if outcome.failures else ""
    return f"{outcome.workflow}: {outcome.status}.{run}{failures}"
