"""One module prints, and lets no control character through to the terminal."""

import ast
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from imagekiln.steps.maintain.verify import VerifyResult
from imagekiln.steps.runtime.machine import add_log_context, empty_log_context
from imagekiln.workflows.cli import text
from imagekiln.workflows.cli.status import status_text
from imagekiln.workflows.cli.terminal import (
    FORMAT,
    print_event,
    print_failure,
    print_json,
    print_note,
    print_result,
    print_text,
)
from imagekiln.workflows.client.status import PodCounts, WorkflowStatus
from imagekiln.workflows.client.steps import StepFailure

FOLDER = Path(text.__file__).parent
EVIL = "\x1b[2J\x9b31m\r\nFinished: all is well \u202e\ud800"
PRINTING = ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write")
ALLOWED = {"terminal.py": 3, "status.py": 1}  # the one in status.py clears a line of our own


def _count_prints(path: Path) -> int:
    tree = ast.parse(path.read_text())
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sum(ast.unparse(function) in PRINTING for function in calls)


def test_only_one_module_prints() -> None:
    counts = {path.name: _count_prints(path) for path in FOLDER.rglob("*.py")}
    assert {name: count for name, count in counts.items() if count} == ALLOWED


def _control_characters(text: str) -> list[str]:
    return [character for character in text if not character.isprintable() and character != "\n"]


def test_printed_text_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(EVIL)
    print_text(EVIL, err=True)
    print_json(json.dumps({"text": EVIL}, ensure_ascii=False))
    print_event("event", text=EVIL)
    shown = capsys.readouterr()
    assert _control_characters(shown.out) == _control_characters(shown.err) == []


def test_a_failure_that_a_pod_left_stays_in_its_line() -> None:
    failure = StepFailure("generate", 3, 1, EVIL)
    status = WorkflowStatus(
        "a",
        "b",
        "Failed",
        "",
        EVIL,
        10,
        1,
        PodCounts(0, 0, 1, 1),
        None,
        None,
        None,
        None,
        (failure,),
    )
    lines = status_text(status).splitlines()
    assert len(lines) == 3
    assert not any(line.startswith("Finished") for line in lines)
    assert _control_characters(status_text(status)) == []


def test_log_of_a_pod_is_lines_of_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEKILN_LOG", "json")
    monkeypatch.setenv("IMAGEKILN_ATTEMPT", "2")
    with empty_log_context():
        add_log_context("generate", "s3://out/run", 3)
        print_text(EVIL)
        print_note(EVIL)
        print_failure("Stopped.", 75)
    captured = capsys.readouterr()
    assert _control_characters(captured.out + captured.err) == []
    lines = [json.loads(line) for line in (captured.out + captured.err).splitlines()]
    common = {"step": "generate", "run": "s3://out/run", "shard": 3, "attempt": 2}
    assert lines == [
        {"event": "result", "message": EVIL, **common},
        {"event": "note", "message": EVIL, **common},
        {"event": "failure", "message": "Stopped.", "exit_code": 75, **common},
    ]


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_result_is_printed_without_control_characters(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    context = click.Context(click.Command("verify"))
    context.meta[FORMAT] = output
    with context:
        print_result(VerifyResult(EVIL, images=20, ok=20, bytes=1000, statuses={}))
    shown = capsys.readouterr().out
    assert _control_characters(shown) == []
    assert not any(line.startswith("Finished") for line in shown.splitlines())


def test_an_error_of_a_command_stays_in_its_line(tmp_path: Path) -> None:
    from imagekiln.workflows.cli.main import main

    ended = CliRunner().invoke(main, ["verify", str(tmp_path / "no\x1b[2J\nFinished: all is well")])
    assert ended.exit_code == 2
    assert len(ended.output.splitlines()) == 1
    assert _control_characters(ended.output) == []
