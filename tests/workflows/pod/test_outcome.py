"""A pod's termination message, and what the exit handler reports."""

import base64
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod import outcome
from imagekiln.workflows.pod.outcome import MAX_FAILURES
from imagekiln.workflows.templates.steps import MAX_FAILURES_CHARS
from tests.texts import chance

FAILURES = json.dumps(json.dumps([{"displayName": "shard(3:3)", "message": 'main: "x"'}]))


def _run_exit_handler(**variables: str) -> Result:
    return CliRunner(env=_environment(**variables)).invoke(
        main, ["outcome", "--workflow", "images/postcards-1", "--status", "Failed"]
    )


def _environment(**variables: str) -> dict[str, str]:
    return {
        "IMAGEKILN_RUN": "s3://datasets/postcards/run-1",
        "IMAGEKILN_FAILURES": base64.b64encode(FAILURES.encode()).decode(),
    } | variables


@pytest.fixture
def termination_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "termination-log"
    file.touch()
    monkeypatch.setattr(outcome, "TERMINATION_LOG", file)
    return file


def test_failing_pod_leaves_its_reason(termination_log: Path) -> None:
    result = CliRunner().invoke(main, ["plan", "none.yaml"])
    assert result.exit_code == 2
    assert "none.yaml" in termination_log.read_text(encoding="utf-8")
    outcome.write_termination_message("\N{SNOWMAN}" * 5000)
    assert termination_log.stat().st_size <= 2000  # Kubernetes keeps 4096 bytes of all containers


def test_reason_that_cannot_be_left_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "TERMINATION_LOG", Path("/proc/self/status"))  # a file to read
    result = CliRunner().invoke(main, ["plan", "none.yaml"])
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit)


@pytest.mark.parametrize("variable", outcome.SECRET_VARIABLES)
def test_reason_shows_no_credential(termination_log: Path, variable: str) -> None:
    for job in ("plain-5c2fbd4e9.yaml", "http://127.0.0.1:9/job.yaml?X-Amz-Signature=5c2fbd4e9"):
        result = CliRunner(env={variable: "plain-5c2fbd4e9"}).invoke(main, ["plan", job])
        assert result.exit_code in (2, 75)
        for text in (result.output, termination_log.read_text(encoding="utf-8")):
            assert "5c2fbd4e9" not in text
            assert "***" in text


def test_outcome_is_reported_with_its_failures_and_dataset() -> None:
    result = _run_exit_handler()
    assert result.exit_code == 0
    for part in ("images/postcards-1: Failed", "s3://datasets/postcards/run-1", "shard(3:3)"):
        assert part in result.output


def test_list_of_failures_that_was_cut_off_is_reported_as_it_is() -> None:
    result = _run_exit_handler(IMAGEKILN_FAILURES=base64.b64encode(FAILURES[:30].encode()).decode())
    assert result.exit_code == 0
    assert "displayName" in result.stdout


def _second_line(nodes: list[dict[str, str]]) -> str:
    """The second line of the report on a workflow with these failed nodes."""
    failures = base64.b64encode(json.dumps(json.dumps(nodes)).encode()).decode()
    return _run_exit_handler(IMAGEKILN_FAILURES=failures).stdout.splitlines()[1]


def _node(name: str, template: str, message: str) -> dict[str, str]:
    """A failed node as Argo 4.1 lists it for the exit handler."""
    return {
        "displayName": name, "message": message, "templateName": template, "phase": "Failed",
        "podName": f"postcards-1-{template}-1", "finishedAt": "2026-11-21T02:00:00Z",
    }  # fmt: skip


def test_second_line_is_the_cause_and_no_attempt_that_a_later_one_made_up_for() -> None:
    nodes = [
        _node("plan(0)", "plan", "main: Error (exit code 75): the bucket did not answer"),
        _node("main", "main", ""),
        _node("aggregate", "aggregate", "retryStrategy.expression evaluated to false"),
        _node("aggregate(0)", "aggregate", "main: Error (exit code 3): 30 images are missing"),
        _node("group(0:0)", "group", ""),
        _node("shard(3:13)", "generate", "No more retries left"),
        _node("shard(3:13)(1)", "generate", "main: Error (exit code 75): GPU 0 fell off the bus"),
        _node("shard(3:13)(0)", "generate", "pod deleted"),
        _node("publish-report", "publish-report", "main: Error (exit code 75): no answer"),
    ]
    assert _second_line(nodes) == "Cause: generate of shard 13: GPU 0 fell off the bus"


def test_cause_names_no_shard_where_prompts_were_not_rewritten() -> None:
    failure = "main: Error (exit code 2): kiln/writer: no such model on the hub."
    nodes = [
        _node("rewriter(1:1)", "rewrite", "retryStrategy.expression evaluated to false"),
        _node("rewriter(1:1)(0)", "rewrite", failure),
    ]
    assert _second_line(nodes) == "Cause: rewrite: kiln/writer: no such model on the hub."


def test_list_of_failures_that_is_too_long_has_a_cause_and_is_lines() -> None:
    nodes = [
        _node("plan(0)", "plan", "main: Error (exit code 75): the hub did not answer"),
        _node("aggregate", "aggregate", "retryStrategy.expression evaluated to false"),
        _node("aggregate(0)", "aggregate", "main: Error (exit code 3): images are missing"),
    ]
    for shard in range(400):
        name = f"shard({shard}:{shard})"
        reason = 'main: Error (exit code 2): "a \\ LoRA" does not fit'
        nodes += [_node(name, "generate", "No more retries left")]
        nodes += [_node(f"{name}(0)", "generate", reason)]
    chance(0).shuffle(nodes)  # as Go's maps do
    text = json.dumps(json.dumps(nodes))[:MAX_FAILURES_CHARS]
    cut = base64.b64encode(text.encode()).decode()
    first, second, *failures = _run_exit_handler(IMAGEKILN_FAILURES=cut).stdout.splitlines()
    assert first.startswith("images/postcards-1: Failed.")
    assert second == 'Cause: generate: "a \\ LoRA" does not fit'
    assert len(failures) == MAX_FAILURES + 1
    assert failures[0] == f"{nodes[0]['displayName']}: {nodes[0]['message']}"
    assert failures[-1] == "... and more"


def test_failure_of_characters_that_go_quotes_in_its_own_way_is_read() -> None:
    nodes = [
        _node("plan", "plan", "no"),
        _node("plan(0)", "plan", "main: Error (exit code 2): a\\x7fb\\U000e0001c"),
    ]
    quoted = json.dumps(json.dumps(nodes)).replace(r"\\\\", "\\")
    failures = base64.b64encode(quoted.encode()).decode()
    result = _run_exit_handler(IMAGEKILN_FAILURES=failures)
    cause = "Cause: plan: a\N{REPLACEMENT CHARACTER}b\U000e0001c"
    assert result.stdout.splitlines()[1] == cause


def test_log_of_the_exit_handler_is_lines_of_json() -> None:
    result = _run_exit_handler(IMAGEKILN_LOG="json", IMAGEKILN_ATTEMPT="1")
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert [line["event"] for line in lines] == ["result"]
    assert lines[0]["message"].startswith("images/postcards-1: Failed.")
    common = {"step": "report", "run": "s3://datasets/postcards/run-1", "attempt": 1}
    assert lines[0].items() >= common.items()
