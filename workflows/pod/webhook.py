"""Webhook of the exit handler: a JSON body from a template, posted when a workflow ends.

The default body is accepted by Slack, Mattermost and Google Chat. cluster/base/secrets.example.yaml
has bodies for Microsoft Teams, PagerDuty and e-mail.
"""

import json
import re
from collections.abc import Mapping

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.pod.outcome import WorkflowOutcome, describe_outcome

DEFAULT_BODY = '{"text": "{text}"}'
PLACEHOLDER = re.compile(r"\{(\w+)\}")
TIMEOUT = 20  # seconds without a response, per attempt
BUSY_STATUSES = (429, 500, 502, 503, 504)
ATTEMPTS = Retry(
    3,
    backoff_factor=2,
    status_forcelist=BUSY_STATUSES,
    allowed_methods=("POST",),
    raise_on_status=False,
    respect_retry_after_header=False,  # it may demand an hour
)
ADVICE = "Correct Secret imagekiln-webhook."


def post_outcome(outcome: WorkflowOutcome, environment: Mapping[str, str]) -> None:
    """Post the outcome to the webhook of Secret imagekiln-webhook, if there is one.

    Retries if the webhook is busy. Raises BadInput if the webhook rejects the outcome or the Secret
    is invalid, TryAgain if there is no response. Messages never show the URL, which is enough to
    post to a webhook.
    """
    url, when, body, authorization = (
        environment.get(f"IMAGEKILN_WEBHOOK{suffix}", "").strip()
        for suffix in ("", "_WHEN", "_BODY", "_AUTHORIZATION")
    )
    if when not in {"", "always", "failure"}:
        raise BadInput(f"the webhook's `when` is neither always nor failure. {ADVICE}")
    if not url or (when == "failure" and outcome.succeeded):
        return
    headers = {"Authorization": authorization} if authorization else {}
    content = fill_body(body or DEFAULT_BODY, outcome)
    status = _post(url, content, headers)
    if status in BUSY_STATUSES:
        raise TryAgain(f"the webhook answered {status}, four times. {ADVICE}")
    if not 200 <= status < 300:
        raise BadInput(f"the webhook answered {status}. {ADVICE}")


def _post(url: str, content: object, headers: Mapping[str, str]) -> int:
    """Post JSON, and return the status of the response."""
    try:
        with requests.Session() as session:
            for scheme in ("https://", "http://"):
                session.mount(scheme, HTTPAdapter(max_retries=ATTEMPTS))
            return session.post(
                url, json=content, headers=headers, timeout=TIMEOUT, allow_redirects=False
            ).status_code
    except ValueError:  # raised by requests, or by urllib3 below it
        raise BadInput(f"the webhook's URL is not valid, or its proxy's is not. {ADVICE}") from None
    except requests.RequestException as error:
        cause = type(error).__name__
        raise TryAgain(f"the webhook did not answer ({cause}). {ADVICE}") from None


def fill_body(template: str, outcome: WorkflowOutcome) -> object:
    """Return the body: JSON with {text}, {workflow}, {status} and so on replaced in its strings.

    Raises BadInput if the template is not JSON.
    """
    values = {
        "text": describe_outcome(outcome),
        "workflow": outcome.workflow,
        "status": outcome.status,
        "run": outcome.run or "",
        "images": outcome.images or "",
        "ok": outcome.ok or "",
        "failures": outcome.failures,
        "cause": outcome.cause or "",
        "severity": "info" if outcome.succeeded else "error",
        "action": "resolve" if outcome.succeeded else "trigger",
        "incident": outcome.run or outcome.workflow,
        "workflow_url": outcome.links.get("Workflow", ""),
        "report_url": outcome.links.get("Report", ""),
    }
    # Escaped, so that no message can end the string around it.
    escaped = {name: json.dumps(value)[1:-1] for name, value in values.items()}
    filled = PLACEHOLDER.sub(lambda match: escaped.get(match[1], match[0]), template)
    try:
        return json.loads(filled)
    except ValueError as error:
        raise BadInput(f"the webhook's body is not JSON ({error}). {ADVICE}") from None
