"""The commands for a cluster that the docs show do what they say, on a cluster in memory."""

from pathlib import Path

import pytest

from imagekiln.workflows.client import connect
from tests.package.finished_job import call
from tests.package.shown_commands import shown_commands
from tests.workflows.memory import Memory

JOB = """\
name: postcards
prompts: s3://prompts/postcards/*.parquet
output: s3://datasets/postcards
model: {id: "bundled:shapes", dtype: float32}
"""
SCHEDULE = ("schedule", "create", "job.yaml", "--cron", "30 1 * * *", "--timezone", "Europe/Berlin")
VERBS = {"submit", "watch", "workflows", "stop", "resubmit", "apply", "schedule"}
ENDS = {"resubmit": "Failed", "stop": "Running"}  # of the workflow; the others find it well


@pytest.fixture
def argo(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """A cluster without objects, to which all commands connect."""
    memory = Memory()
    monkeypatch.setattr(connect, "connect", lambda *_: memory)
    return memory


@pytest.mark.parametrize(
    "words", [words for words in shown_commands() if words[0] in VERBS], ids=" ".join
)
def test_shown_command_works_on_a_cluster(words: list[str], argo: Memory, tmp_path: Path) -> None:
    for word in words:
        if word.endswith(".yaml"):
            (tmp_path / word).write_text(JOB)
    (tmp_path / "job.yaml").write_text(JOB)
    assert call(tmp_path, *SCHEDULE).exit_code == 0
    assert call(tmp_path, "submit", "job.yaml", "--date", "2026-11-21").exit_code == 0
    (name,) = argo.workflows()
    argo.end(name, ENDS.get(words[0], "Succeeded"))

    # No controller ends what the command itself submits.
    words = [name if word == "NAME" else word for word in words if word != "--watch"]
    result = call(tmp_path, *words)
    assert result.exit_code == 0, result.output
