"""Nothing reaches a terminal but by one way, which lets no control character through."""

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.maintain.verify import VerifyResult
from imagekiln.workflows.cli import text
from imagekiln.workflows.cli.status import status_text
from imagekiln.workflows.cli.terminal import print_text
from imagekiln.workflows.cli.text import format_verification, print_result
from imagekiln.workflows.client.status import PodCounts, StepFailure, WorkflowStatus
from tests.runs import finished

FOLDER = Path(text.__file__).parent
EVIL = "\x1b[2J\x9b31m\r\nFinished: all is well \u202e\ud800"
ALLOWED = {"terminal.py": 2, "status.py": 1}  # the one in status.py clears a line of our own


def _prints(path: Path) -> int:
    calls = [
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    names = [ast.unparse(called) for called in calls]
    return sum(
        name in ("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write")
        for name in names
    )


def test_only_one_module_prints() -> None:
    found = {path.name: _prints(path) for path in FOLDER.rglob("*.py")}
    assert {name: count for name, count in found.items() if count} == ALLOWED


def _odd(shown: str) -> list[str]:
    return [sign for sign in shown if not sign.isprintable() and sign != "\n"]


def test_what_is_said_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(EVIL)
    print_text(EVIL, err=True)
    shown = capsys.readouterr()
    assert _odd(shown.out) == _odd(shown.err) == []


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
    assert _odd(status_text(status)) == []


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_result_is_printed_without_control_characters(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = load_summary(finished(tmp_path / "run"))
    print_result(
        VerifyResult(EVIL.replace("\ud800", ""), found.images, found.ok, found.bytes),
        output,
        format_verification,
    )
    shown = capsys.readouterr().out
    assert _odd(shown) == []
    assert not any(line.startswith("Finished") for line in shown.splitlines())


def test_an_error_of_a_command_stays_in_its_line(tmp_path: Path) -> None:
    from imagekiln.workflows.cli.main import main

    ended = CliRunner().invoke(main, ["verify", str(tmp_path / "no\x1b[2J\nFinished: all is well")])
    assert ended.exit_code == 2
    assert len(ended.output.splitlines()) == 1
    assert _odd(ended.output) == []
