"""The exit handler's webhook: what is posted, and that it never changes how a workflow ended."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod.outcome import WorkflowOutcome, describe_outcome
from imagekiln.workflows.pod.webhook import fill_body

pytestmark = pytest.mark.usefixtures("retries_at_once")

FAILURES = json.dumps([{"displayName": "shard(3:3)", "message": 'main: "x" {run}'}])
SECRETS = Path(__file__).parents[3] / "workflows/cluster/base/secrets.example.yaml"
OUTCOME = WorkflowOutcome("images/postcards-1", "Failed", "s3://datasets/run-1", 'a: "b"\n{status}')
LINKS = {"IMAGEKILN_ARGO_URL": "https://argo.example.com/"}


@contextmanager
def _webhook(
    *statuses: int, answer: bytes = b"", authorizations: list[str | None] | None = None
) -> Iterator[tuple[str, list[object]]]:
    """A server that answers with these statuses in turn, and with the last one ever after."""
    bodies: list[object] = []
    headers = [] if authorizations is None else authorizations

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the base class's name
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            headers.append(self.headers["Authorization"])
            self.send_response(statuses[min(len(bodies), len(statuses)) - 1])
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook", bodies
        server.shutdown()


def _run_exit_handler(status: str = "Failed", *options: str, **variables: str) -> Result:
    environment = {
        "IMAGEKILN_RUN": "s3://datasets/postcards/run-1",
        "IMAGEKILN_FAILURES": base64.b64encode(FAILURES.encode()).decode(),
    }
    return CliRunner(env=environment | variables).invoke(
        main, ["outcome", "--workflow", "images/postcards-1", "--status", status, *options]
    )


def test_default_body_is_a_chat_message() -> None:
    with _webhook(200) as (url, bodies):
        assert _run_exit_handler(IMAGEKILN_WEBHOOK=f"{url}\n").exit_code == 0
    text = (
        "images/postcards-1: Failed. Dataset: s3://datasets/postcards/run-1.\n"
        'shard(3:3): main: "x" {run}'
    )
    assert bodies == [{"text": text}]


def _example_bodies() -> list[str]:
    """The bodies in the comments of the example: Teams, PagerDuty, two mail gateways."""
    comments = [
        line.removeprefix("#").strip()
        for line in SECRETS.read_text().splitlines()
        if line.startswith("#   body:")
    ]
    return [yaml.safe_load(line)["body"] for line in comments]


def _filled(template: str, outcome: WorkflowOutcome) -> dict[str, Any]:
    body = fill_body(template, outcome)
    assert isinstance(body, dict)
    return body


def test_bodies_of_the_example_are_json_for_teams_pagerduty_and_e_mail() -> None:
    teams, pagerduty, resend, sendgrid = (_filled(text, OUTCOME) for text in _example_bodies())
    assert teams["type"] == "message"
    assert pagerduty["payload"]["severity"] == "error"
    assert pagerduty["payload"]["summary"] == "images/postcards-1: Failed"
    assert resend["subject"] == sendgrid["subject"] == "images/postcards-1: Failed"
    assert resend["text"] == sendgrid["content"][0]["value"] == describe_outcome(OUTCOME)


def test_incident_of_a_run_is_closed_by_whatever_workflow_ends_it_well() -> None:
    _, pagerduty, *_ = _example_bodies()
    failed = _filled(pagerduty, OUTCOME)
    again = replace(OUTCOME, workflow="images/postcards-1-again-2", status="Succeeded")
    succeeded = _filled(pagerduty, again)
    assert (failed["event_action"], succeeded["event_action"]) == ("trigger", "resolve")
    assert failed["dedup_key"] == succeeded["dedup_key"] == "s3://datasets/run-1"
    unplanned = _filled(pagerduty, replace(OUTCOME, run=None))
    assert unplanned["dedup_key"] == OUTCOME.workflow


def test_links_and_messages_are_put_into_texts_that_they_cannot_end() -> None:
    outcome = replace(OUTCOME, links={"Workflow": "https://argo.example.com/w"}, cause='"\n\\')
    body = '{"url": "{workflow_url}", "report": "{report_url}", "why": "{cause}", "x": "{other}"}'
    links = {"url": "https://argo.example.com/w", "report": ""}
    assert _filled(body, outcome) == links | {"why": '"\n\\', "x": "{other}"}
    with pytest.raises(BadInput, match="the webhook's body is not JSON"):
        fill_body("{text}", OUTCOME)


def test_message_has_links_and_counts_where_they_are_known() -> None:
    figures = json.dumps({"ok": 46, "failed": 2})
    options = ("--images=48", f"--figures={figures}", "--report-node=aggregate")
    text = _run_exit_handler("Failed", *options, **LINKS).stdout
    assert "images/postcards-1: Failed. 46 of 48 images are ok, 2 failed. Dataset: s3://" in text
    assert text.endswith(
        "Workflow: https://argo.example.com/workflows/images/postcards-1\n"
        # Argo's own id of the node postcards-1.aggregate
        "Report: https://argo.example.com/artifact-files/images/workflows/postcards-1/"
        "postcards-1-1621089721/outputs/report/index.html\n"
    )


def test_message_counts_all_images_of_the_run_by_status() -> None:
    # Of a retry, `plan` counts the images of it, and `aggregate` the run's.
    figures = json.dumps({"ok": 12, "failed": 1, "outscored": 7, "drawing": 3.5})
    options = ("--images=2", f"--figures={figures}")
    text = _run_exit_handler("Failed", *options, IMAGEKILN_RUN="/data/RUN/retry-3").stdout
    assert "12 of 13 images are ok, 1 failed, 7 outscored. Dataset: /data/RUN.\n" in text


def test_run_that_was_not_planned_has_neither_counts_nor_a_report() -> None:
    unset = [f"--{name}={{{{workflow.outputs.{name}}}}}" for name in ("images", "figures")]
    run = "{{workflow.outputs.parameters.run}}"
    text = _run_exit_handler(
        "Failed", *unset, "--report-node=aggregate", IMAGEKILN_RUN=run, **LINKS
    ).stdout
    assert "{{" not in text
    assert "Report" not in text
    assert "Workflow: https://argo.example.com/workflows/images/postcards-1" in text


CREDENTIALS = (
    "s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMIK7MDENG@datasets/prompts",
    "GET https://store.example.com/a.parquet?X-Amz-Signature=5c2fbd4e9&X-Amz-Expires=600 failed",
    "https://blob.example.com/c?sv=2024&sig=5c2fbd4e9%3D",
    'answer: {"access_token": "5c2fbd4e9", "status": 403}',
    "login failed with password=5c2fbd4e9",
    "Authorization: Bearer 5c2fbd4e9.5c2fbd4e9",
    "401 for hf_5c2fbd4e9abcdefgh",
    "the key plain-5c2fbd4e9 is in the environment",
)


def test_no_credential_reaches_the_webhook_or_the_log() -> None:
    failures = [{"displayName": "plan", "message": text} for text in CREDENTIALS]
    attempt = {"displayName": "plan(0)", "templateName": "plan", "message": CREDENTIALS[-1]}
    failures += [{"displayName": "plan", "templateName": "plan"}, attempt]
    variables = {
        "IMAGEKILN_FAILURES": base64.b64encode(json.dumps(failures).encode()).decode(),
        "IMAGEKILN_RUN": "s3://user:5c2fbd4e9@datasets/postcards/run-1",
        "HF_TOKEN": "plain-5c2fbd4e9",
    }
    names = ("text", "run", "failures", "incident", "cause")
    body = json.dumps({name: f"{{{name}}}" for name in names})
    with _webhook(200) as (url, bodies):
        result = _run_exit_handler(IMAGEKILN_WEBHOOK=url, IMAGEKILN_WEBHOOK_BODY=body, **variables)
    posted = json.dumps(bodies)
    assert '"cause": "plan: ' in posted
    for text in (posted, result.output):
        assert "5c2fbd4e9" not in text
        assert "wJalrXUtnFEMI" not in text
        assert "AKIA" not in text
    assert "s3://***@datasets/postcards/run-1" in posted
    assert "https://store.example.com/a.parquet?***" in posted


def test_key_of_a_mail_gateway_is_sent_and_never_shown() -> None:
    key = "Bearer 5c2fbd4e9-key"
    headers: list[str | None] = []
    with _webhook(401, answer=b"5c2fbd4e9-key is wrong", authorizations=headers) as (url, _):
        result = _run_exit_handler(
            IMAGEKILN_WEBHOOK=url, IMAGEKILN_WEBHOOK_AUTHORIZATION=f"{key}\n"
        )
    assert headers == [key]
    assert result.exit_code == 0
    assert "the webhook answered 401. " in result.stderr
    assert "5c2fbd4e9" not in result.output


@pytest.mark.parametrize(("status", "posted"), [("Succeeded", 0), ("Failed", 1), ("Error", 1)])
def test_webhook_for_failures_is_told_of_failures_only(status: str, posted: int) -> None:
    with _webhook(200) as (url, bodies):
        _run_exit_handler(status, IMAGEKILN_WEBHOOK=url, IMAGEKILN_WEBHOOK_WHEN="failure")
    assert len(bodies) == posted


def test_busy_webhook_is_asked_again() -> None:
    with _webhook(503, 429, 200) as (url, bodies):
        result = _run_exit_handler(IMAGEKILN_WEBHOOK=url)
    assert len(bodies) == 3
    assert "Nobody was notified" not in result.stderr


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file:///etc/passwd", "Correct Secret imagekiln-webhook."),
        ("https://[secret", "Correct Secret imagekiln-webhook."),
        ("http://secret:port/", "Correct Secret imagekiln-webhook."),
        ("http://127.0.0.1:9/secret", "the webhook did not answer ("),
    ],
)
def test_webhook_that_takes_nothing_changes_nothing_and_its_url_stays_secret(
    url: str, says: str
) -> None:
    result = _run_exit_handler(IMAGEKILN_WEBHOOK=url)
    assert result.exit_code == 0
    assert says in result.stderr
    assert "secret" not in result.output
