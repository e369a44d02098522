"""The commands for a cluster that the docs show do what they say, on a cluster in memory."""

from pathlib import Path

import pytest

from imagekiln.workflows.client import connect
from tests.package.finished_job import call
from tests.package.shown_commands import shown_commands
from tests.pages import page_name, with_blocks
from tests.workflows.memory import Memory

JOB = """\
name: postcards
prompts: s3://prompts/postcards/*.parquet
output: s3://datasets/postcards
model: {id: "bundled:shapes", dtype: float32}
"""
SCHEDULE = ("job.yaml", "--cron", "30 1 * * *", "--timezone", "Europe/Berlin")
VERBS = {"submit", "watch", "workflows", "stop", "resubmit", "apply", "schedule"}
ENDS = {"resubmit": "Failed", "stop": "Running"}  # of the workflow; the others find it well


@pytest.mark.parametrize("page", with_blocks("sh"), ids=page_name)
def test_shown_commands_work_on_a_cluster(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for words in shown_commands(page):
        if words[0] in VERBS:
            memory = Memory()
            monkeypatch.setattr(connect, "connect", lambda *_, memory=memory: memory)
            _run(words, memory, tmp_path)


def _run(words: list[str], argo: Memory, folder: Path) -> None:
    """Run a command beside a schedule and a workflow of the job."""
    for name in {"job.yaml", *(word for word in words if word.endswith(".yaml"))}:
        (folder / name).write_text(JOB)
    assert call(folder, "schedule", "create", *SCHEDULE).exit_code == 0
    assert call(folder, "submit", "job.yaml", "--date", "2026-11-21").exit_code == 0
    (workflow,) = argo.workflows()
    argo.end(workflow, ENDS.get(words[0], "Succeeded"))

    # No controller ends what the command itself submits.
    words = [workflow if word == "NAME" else word for word in words if word != "--watch"]
    result = call(folder, *words)
    assert result.exit_code == 0, (words, result.output)
