"""A pod's termination message, and the exit handler with its webhook."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod import outcome

FAILURES = json.dumps(json.dumps([{"displayName": "shard(3:3)", "message": 'main: "x"'}]))


def _run_exit_handler(**variables: str) -> Result:
    return CliRunner(env=_environment(**variables)).invoke(main, ["outcome"])


@contextmanager
def _server(status: int) -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the base class's name
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hook", bodies
        server.shutdown()


def _environment(**variables: str) -> dict[str, str]:
    return {
        "IMAGEKILN_WORKFLOW": "images/postcards-1",
        "IMAGEKILN_STATUS": "Failed",
        "IMAGEKILN_RUN": "s3://datasets/postcards/run-1",
        "IMAGEKILN_FAILURES": base64.b64encode(FAILURES.encode()).decode(),
    } | variables


def test_failing_pod_leaves_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    monkeypatch.setattr(outcome, "TERMINATION_LOG", file)
    result = CliRunner().invoke(main, ["plan", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "none.yaml" in file.read_text(encoding="utf-8")


def test_no_reason_is_left_outside_of_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "TERMINATION_LOG", tmp_path / "termination-log")
    outcome.write_termination_message("why")
    assert list(tmp_path.iterdir()) == []


def test_outcome_is_reported_with_its_failures_and_dataset() -> None:
    result = _run_exit_handler()
    assert result.exit_code == 0
    for part in ("images/postcards-1: Failed", "s3://datasets/postcards/run-1", "shard(3:3)"):
        assert part in result.output


def test_run_that_was_never_planned_is_not_named() -> None:
    result = _run_exit_handler(IMAGEKILN_RUN="{{workflow.outputs.parameters.run}}")
    assert "{{" not in result.output


def test_outcome_is_posted_as_json() -> None:
    with _server(204) as (url, bodies):
        assert _run_exit_handler(IMAGEKILN_WEBHOOK=url).exit_code == 0
    (body,) = map(json.loads, bodies)
    assert (body["workflow"], body["status"]) == ("images/postcards-1", "Failed")


@pytest.mark.parametrize(("status", "code"), [(404, 2), (429, 75), (500, 75)])
def test_webhook_that_rejects_the_outcome_is_tried_again_only_where_that_helps(
    status: int, code: int
) -> None:
    with _server(status) as (url, _):
        assert _run_exit_handler(IMAGEKILN_WEBHOOK=url).exit_code == code


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
def test_webhook_whose_url_is_not_valid_is_rejected_without_showing_it(url: str) -> None:
    result = _run_exit_handler(IMAGEKILN_WEBHOOK=url)
    assert result.exit_code == 2
    assert "Correct Secret imagekiln-webhook." in result.output
    assert "secret" not in result.output


def test_webhook_that_does_not_answer_is_tried_again_and_its_url_stays_secret() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        free_port = server.server_port
    result = _run_exit_handler(IMAGEKILN_WEBHOOK=f"http://127.0.0.1:{free_port}/secret")
    assert result.exit_code == 75
    assert "the webhook did not answer (" in result.output
    assert "secret" not in result.output
