"""One module prints, and lets no control character through to the terminal."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from imagekiln.steps.maintain.verify import VerifyResult
from imagekiln.steps.runtime.machine import add_log_context, empty_log_context
from imagekiln.workflows.cli.terminal import (
    FORMAT,
    print_event,
    print_failure,
    print_json,
    print_note,
    print_result,
    print_text,
)

EVIL = "\x1b[2J\x9b31m\r\nFinished: all is well \u202e\ud800"


def _control_characters(text: str) -> list[str]:
    return [character for character in text if not character.isprintable() and character != "\n"]


def test_printed_text_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(EVIL)
    print_text(EVIL, err=True)
    print_json(json.dumps({"text": EVIL}, ensure_ascii=False))
    print_event("event", text=EVIL)
    shown = capsys.readouterr()
    assert _control_characters(shown.out) == _control_characters(shown.err) == []


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
