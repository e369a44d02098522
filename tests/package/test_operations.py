"""What the runbook says of messages, clean-up and backups holds."""

import re
import shutil
from pathlib import Path

import pytest

from tests.package.finished_job import call, only_run
from tests.pages import CODE_SPAN, ROOT, program_texts

RUNBOOK = (ROOT / "docs" / "operations.md").read_text()
BACKUP = re.compile(r"plan\.json|(rejected|duplicates)-.*\.parquet|shards")  # and inputs/, if any


def quoted_messages() -> list[str]:
    """The pieces of messages in the runbook's table."""
    _, table = RUNBOOK.split("| step | the message contains |")
    rows = [line.split("|") for line in table.split("\n## ")[0].splitlines() if line[:2] == "| "]
    return [piece for row in rows for piece in CODE_SPAN.findall(row[2])]


def test_messages_in_the_runbook_are_the_program_s_own() -> None:
    texts = "\n".join(program_texts())
    assert len(quoted_messages()) > 20
    assert [piece for piece in quoted_messages() if piece not in texts] == []


@pytest.fixture
def folder(finished_job: Path, tmp_path: Path) -> Path:
    """A copy of the finished job."""
    return Path(shutil.copytree(finished_job, tmp_path / "copy"))


def test_images_are_made_again_from_plan_and_shards_alone(folder: Path) -> None:
    run = only_run(folder)
    before = {path.name: path.read_bytes() for path in (run / "images").iterdir()}
    for entry in run.iterdir():
        if BACKUP.fullmatch(entry.name):
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()

    steps = [
        ("generate", "--shard", "0"),
        ("generate", "--shard", "1"),
        ("aggregate",),
        ("verify",),
    ]
    for command, *options in steps:
        result = call(folder, command, str(run), *options)
        assert result.exit_code == 0, result.output
    assert {path.name: path.read_bytes() for path in (run / "images").iterdir()} == before
