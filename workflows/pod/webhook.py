"""The webhook of the exit handler: a JSON body, made from a template, posted when a workflow ends.

The default body is what Slack, Mattermost and Google Chat take. docs/cluster.md has the bodies for
Microsoft Teams and PagerDuty.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from imagekiln.steps.errors import BadInput, TryAgain, first_line
from imagekiln.workflows.client.failures import root_cause_message
from imagekiln.workflows.pod.outcome import WorkflowOutcome, describe_outcome

DEFAULT_BODY = '{"text": "{text}"}'
PLACEHOLDER = re.compile(r"\{(\w+)\}")
TIMEOUT = 20  # seconds, for each attempt
BUSY_STATUSES = (429, 500, 502, 503, 504)
ATTEMPTS = Retry(
    3,
    backoff_factor=2,
    status_forcelist=BUSY_STATUSES,
    allowed_methods=("POST",),
    raise_on_status=False,
    respect_retry_after_header=False,  # it may ask for an hour
)
MAX_REASON_CHARS = 100
ADVICE = "Correct Secret imagekiln-webhook."


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where to post, a template of the body, and whether only for workflows that failed."""

    url: str
    body: str = DEFAULT_BODY
    only_failures: bool = False


def webhook_from_environment(environment: Mapping[str, str]) -> Webhook | None:
    """The webhook that Secret imagekiln-webhook describes; None where it names no URL.

    Raises BadInput where `when` is neither always nor failure.
    """
    url = environment.get("IMAGEKILN_WEBHOOK", "").strip()
    if not url:
        return None
    when = environment.get("IMAGEKILN_WEBHOOK_WHEN", "").strip() or "always"
    if when not in {"always", "failure"}:
        raise BadInput(f"the webhook's `when` is neither always nor failure. {ADVICE}")
    body = environment.get("IMAGEKILN_WEBHOOK_BODY", "").strip() or DEFAULT_BODY
    return Webhook(url, body, only_failures=when == "failure")


def post_outcome(outcome: WorkflowOutcome, webhook: Webhook) -> None:
    """Post the outcome, several times where the webhook is busy.

    Raises BadInput where the webhook rejects it, TryAgain where it does not answer. No message
    shows the URL: whoever knows a webhook's URL may post to it.
    """
    if webhook.only_failures and outcome.succeeded:
        return
    if not webhook.url.startswith(("https://", "http://")):
        raise BadInput(f"the webhook's URL does not start with https:// or http://. {ADVICE}")
    body = fill_body(webhook.body, outcome)
    try:
        status, answer = _post(webhook.url, body)
    except ValueError:  # from requests, or from urllib3 below it
        raise BadInput(f"the webhook's URL is not valid. {ADVICE}") from None
    except requests.RequestException as error:
        cause = root_cause_message(error)
        raise TryAgain(f"the webhook did not answer ({cause}). {ADVICE}") from error

    if status in BUSY_STATUSES:
        raise TryAgain(f"the webhook answered {status}, four times. {ADVICE}")
    if not 200 <= status < 300:
        raise BadInput(f"the webhook answered {status}{_reason(answer, webhook.url)}. {ADVICE}")


def fill_body(template: str, outcome: WorkflowOutcome) -> object:
    """The body: JSON in whose texts {text}, {workflow}, {status} and so on are replaced.

    Raises BadInput where the template is not JSON.
    """
    values = {
        "text": describe_outcome(outcome),
        "workflow": outcome.workflow,
        "status": outcome.status,
        "run": outcome.run or "",
        "failures": outcome.failures,
        "severity": "info" if outcome.succeeded else "error",
    }
    try:
        body = json.loads(template)
    except ValueError as error:
        raise BadInput(f"the webhook's body is not JSON ({error}). {ADVICE}") from error
    return _fill(body, values)


def _fill(value: object, values: Mapping[str, str]) -> object:
    # In parsed JSON: whatever a message holds, it cannot end the string that it is put into.
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), value)
    if isinstance(value, list):
        return [_fill(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, values) for key, item in value.items()}
    return value


def _post(url: str, body: object) -> tuple[int, str]:
    """The status and the first bytes of the answer."""
    with requests.Session() as session:
        session.mount(url, HTTPAdapter(max_retries=ATTEMPTS))
        with session.post(url, json=body, timeout=TIMEOUT, stream=True) as response:
            start = next(response.iter_content(MAX_REASON_CHARS), b"")
            return response.status_code, start.decode(errors="replace")


def _reason(answer: str, url: str) -> str:
    """The answer's first line, such as Slack's "no_text", unless it repeats the URL."""
    line = first_line(answer)
    secrets = [part for part in re.split(r"[/?&=]", url) if len(part) > 3]
    if not line or any(part in line for part in secrets):
        return ""
    return f" ({line})"
