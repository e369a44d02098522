"""The webhook of the exit handler: a JSON body, made from a template, posted when a workflow ends.

The default body is what Slack, Mattermost and Google Chat take. cluster/base/secrets.example.yaml
has bodies for Microsoft Teams, PagerDuty and e-mail.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from imagekiln.steps.errors import BadInput, TryAgain, first_line
from imagekiln.workflows.client.failures import root_cause_message
from imagekiln.workflows.pod.outcome import WorkflowOutcome, describe_outcome

DEFAULT_BODY = '{"text": "{text}"}'
PLACEHOLDER = re.compile(r"\{(\w+)\}")
URL_NAMES = ("workflow_url", "report_url", "runbook_url")
TIMEOUT = 20  # seconds without an answer, in each attempt
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
    """Where to post, a template of the body, and whether only for workflows that failed.

    `authorization` is that header's value, such as "Bearer KEY".
    """

    url: str
    body: str = DEFAULT_BODY
    only_failures: bool = False
    authorization: str = ""


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
    authorization = environment.get("IMAGEKILN_WEBHOOK_AUTHORIZATION", "").strip()
    return Webhook(url, body, only_failures=when == "failure", authorization=authorization)


def post_outcome(outcome: WorkflowOutcome, webhook: Webhook) -> None:
    """Post the outcome, several times where the webhook is busy.

    Raises BadInput where the webhook rejects it, TryAgain where it does not answer. No message
    shows the URL: whoever knows a webhook's URL may post to it.
    """
    if webhook.only_failures and outcome.succeeded:
        return
    body = fill_body(webhook.body, outcome)
    try:
        response = _post(webhook, body)
    except ValueError:  # from requests, or from urllib3 below it
        raise BadInput(f"the webhook's URL is not valid, or its proxy's is not. {ADVICE}") from None
    except requests.RequestException as error:
        cause = root_cause_message(error)
        raise TryAgain(f"the webhook did not answer ({cause}). {ADVICE}") from error

    status = response.status_code
    if response.is_redirect:
        raise BadInput(
            f"the webhook answered {status} (it redirects: give the URL that it leads to). {ADVICE}"
        )
    if status in BUSY_STATUSES:
        raise TryAgain(f"the webhook answered {status}, four times. {ADVICE}")
    if not 200 <= status < 300:
        reason = _reason(response.text[:MAX_REASON_CHARS], webhook)
        raise BadInput(f"the webhook answered {status}{reason}. {ADVICE}")


def fill_body(template: str, outcome: WorkflowOutcome) -> object:
    """The body: JSON in whose texts {text}, {workflow}, {status} and so on are replaced.

    An item of a list, such as a button, that leads to an unknown page is omitted. Raises BadInput
    where the template is not JSON.
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
        "workflow_url": outcome.links.workflow,
        "report_url": outcome.links.report,
        "runbook_url": outcome.links.runbook,
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
        return [_fill(item, values) for item in value if not _leads_nowhere(item, values)]
    if isinstance(value, dict):
        return {key: _fill(item, values) for key, item in value.items()}
    return value


def _leads_nowhere(item: object, values: Mapping[str, str]) -> bool:
    """Whether a text of this object is nothing but the URL of a page that is not known."""
    if not isinstance(item, dict):
        return False
    unknown = {f"{{{name}}}" for name in URL_NAMES if not values[name]}
    texts = (text for text in item.values() if isinstance(text, str))
    return not unknown.isdisjoint(texts)


def _post(webhook: Webhook, body: object) -> requests.Response:
    headers = {"Authorization": webhook.authorization} if webhook.authorization else {}
    with requests.Session() as session:
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(max_retries=ATTEMPTS))
        return session.post(
            webhook.url, json=body, headers=headers, timeout=TIMEOUT, allow_redirects=False
        )


def _reason(answer: str, webhook: Webhook) -> str:
    """The answer's first line, such as Slack's "no_text", unless it repeats the URL or the key."""
    line = first_line(answer)
    if not line:
        return ""

    for part in re.split(r"[/?&=\s]", f"{webhook.url} {webhook.authorization}"):
        if len(part) > 3 and part in line:
            return ""
    return f" ({line})"
