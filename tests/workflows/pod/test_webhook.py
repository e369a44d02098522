"""The exit handler's webhook: what is posted, and that it never changes how a workflow ended."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod.outcome import WorkflowOutcome
from imagekiln.workflows.pod.webhook import fill_body

FAILURES = json.dumps([{"displayName": "shard(3:3)", "message": 'main: "x" {run}'}])
SECRETS = Path(__file__).parents[3] / "workflows/cluster/base/secrets.example.yaml"
OUTCOME = WorkflowOutcome("images/postcards-1", "Failed", "s3://datasets/run-1", 'a: "b"\n{status}')


@contextmanager
def _webhook(*statuses: int, answer: bytes = b"") -> Iterator[tuple[str, list[object]]]:
    """A server that answers with these statuses in turn, and with the last one ever after."""
    bodies: list[object] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the base class's name
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
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


def _run_exit_handler(status: str = "Failed", **variables: str) -> Result:
    environment = {
        "IMAGEKILN_WORKFLOW": "images/postcards-1",
        "IMAGEKILN_STATUS": status,
        "IMAGEKILN_RUN": "s3://datasets/postcards/run-1",
        "IMAGEKILN_FAILURES": base64.b64encode(FAILURES.encode()).decode(),
    }
    return CliRunner(env=environment | variables).invoke(main, ["outcome"])


def test_default_body_is_a_chat_message() -> None:
    with _webhook(200) as (url, bodies):
        assert _run_exit_handler(IMAGEKILN_WEBHOOK=f"{url}\n").exit_code == 0
    text = (
        "images/postcards-1: Failed. Dataset: s3://datasets/postcards/run-1.\n"
        'shard(3:3): main: "x" {run}'
    )
    assert bodies == [{"text": text}]


def test_body_is_a_template_whose_texts_are_filled_in() -> None:
    template = '{"a": ["{status} of {workflow}", 3], "b": {"c": "{failures}|{other}"}}'
    assert fill_body(template, OUTCOME) == {
        "a": ["Failed of images/postcards-1", 3],
        "b": {"c": 'a: "b"\n{status}|{other}'},
    }


def test_bodies_of_the_example_are_json_for_teams_and_pagerduty() -> None:
    comments = [
        line.removeprefix("#").strip()
        for line in SECRETS.read_text().splitlines()
        if line.startswith("#   body:")
    ]
    bodies = [fill_body(yaml.safe_load(line)["body"], OUTCOME) for line in comments]
    teams, pagerduty = bodies
    assert isinstance(teams, dict)
    assert teams["type"] == "message"
    assert isinstance(pagerduty, dict)
    assert pagerduty["payload"]["severity"] == "error"
    assert pagerduty["payload"]["summary"] == "images/postcards-1: Failed"


def test_body_that_is_not_json_is_refused() -> None:
    with pytest.raises(BadInput, match="the webhook's body is not JSON"):
        fill_body("{text}", OUTCOME)


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


def test_rejected_outcome_changes_nothing_and_says_why() -> None:
    with _webhook(400, answer=b"no_text") as (url, _):
        result = _run_exit_handler(IMAGEKILN_WEBHOOK=url)
    assert result.exit_code == 0
    assert "Nobody was notified: the webhook answered 400 (no_text)." in result.stderr
    assert "Correct Secret imagekiln-webhook." in result.stderr


def test_answer_that_repeats_the_url_is_not_shown() -> None:
    with _webhook(404, answer=b"no such page: /hook") as (url, _):
        result = _run_exit_handler(IMAGEKILN_WEBHOOK=url)
    assert "the webhook answered 404. " in result.stderr


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "http://",
        "https://[secret",
        "http://secret:port/",
        f"http://{'secret' * 11}/",
    ],
)
def test_url_that_is_not_valid_changes_nothing_and_is_not_shown(url: str) -> None:
    result = _run_exit_handler(IMAGEKILN_WEBHOOK=url)
    assert result.exit_code == 0
    assert "Correct Secret imagekiln-webhook." in result.stderr
    assert "secret" not in result.output


def test_webhook_that_does_not_answer_changes_nothing_and_its_url_stays_secret() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        free_port = server.server_port
    result = _run_exit_handler(IMAGEKILN_WEBHOOK=f"http://127.0.0.1:{free_port}/secret")
    assert result.exit_code == 0
    assert "the webhook did not answer (" in result.stderr
    assert "secret" not in result.output


def test_misspelled_when_is_reported() -> None:
    result = _run_exit_handler(IMAGEKILN_WEBHOOK="http://x/", IMAGEKILN_WEBHOOK_WHEN="fail")
    assert result.exit_code == 0
    assert "neither always nor failure" in result.stderr
