"""The exit handler: what it says, and to whom."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from imagekiln.workflows.cli.main import main

FAILURES = json.dumps(json.dumps([{"displayName": "shard(3:3)", "message": 'main: "x"'}]))


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


def _environment(**more: str) -> dict[str, str]:
    return {
        "IMAGEKILN_WORKFLOW": "images/postcards-1",
        "IMAGEKILN_STATUS": "Failed",
        "IMAGEKILN_RUN": "s3://datasets/postcards/run-1",
        "IMAGEKILN_FAILURES": base64.b64encode(FAILURES.encode()).decode(),
    } | more


def test_outcome_is_said_with_its_failures_and_dataset() -> None:
    done = CliRunner(env=_environment()).invoke(main, ["outcome"])
    assert done.exit_code == 0
    for part in ("images/postcards-1: Failed", "s3://datasets/postcards/run-1", "shard(3:3)"):
        assert part in done.output


def test_run_that_was_never_planned_is_not_named() -> None:
    environment = _environment(IMAGEKILN_RUN="{{workflow.outputs.parameters.run}}")
    assert "{{" not in CliRunner(env=environment).invoke(main, ["outcome"]).output


def test_outcome_is_posted_as_json() -> None:
    with _server(204) as (url, bodies):
        assert (
            CliRunner(env=_environment(IMAGEKILN_WEBHOOK=url)).invoke(main, ["outcome"]).exit_code
            == 0
        )
    (body,) = map(json.loads, bodies)
    assert (body["workflow"], body["status"]) == ("images/postcards-1", "Failed")


@pytest.mark.parametrize(("status", "code"), [(404, 2), (429, 75), (500, 75)])
def test_webhook_that_refuses_is_retried_only_where_that_helps(status: int, code: int) -> None:
    with _server(status) as (url, _):
        assert (
            CliRunner(env=_environment(IMAGEKILN_WEBHOOK=url)).invoke(main, ["outcome"]).exit_code
            == code
        )


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
def test_webhook_that_is_no_url_is_refused(url: str) -> None:
    done = CliRunner(env=_environment(IMAGEKILN_WEBHOOK=url)).invoke(main, ["outcome"])
    assert done.exit_code == 2
    assert "Correct Secret imagekiln-webhook." in done.output
    assert "secret" not in done.output


def test_webhook_that_nobody_serves_is_tried_again_and_its_url_stays_secret() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        free = server.server_port
    done = CliRunner(env=_environment(IMAGEKILN_WEBHOOK=f"http://127.0.0.1:{free}/secret")).invoke(
        main, ["outcome"]
    )
    assert done.exit_code == 75
    assert "the webhook did not answer (" in done.output
    assert "secret" not in done.output
