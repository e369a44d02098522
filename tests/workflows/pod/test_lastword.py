"""The sentence that a pod leaves for Argo to show."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod import outcome
from imagekiln.workflows.pod.outcome import write_termination_message


def test_failing_pod_leaves_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    monkeypatch.setattr(outcome, "TERMINATION_LOG", file)
    done = CliRunner().invoke(main, ["plan", str(tmp_path / "none.yaml")])
    assert done.exit_code == 2
    assert "none.yaml" in file.read_text(encoding="utf-8")


def test_nothing_is_left_where_there_is_no_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "TERMINATION_LOG", tmp_path / "termination-log")
    write_termination_message("why")
    assert list(tmp_path.iterdir()) == []
