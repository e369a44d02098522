"""A folder with the files that the docs name, and commands that run in it."""

import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imagekiln.workflows.cli.main import main
from tests.pages import EXAMPLES
from tests.runs import settings

PROMPTS = "prompt\n" + "".join(f"a red circle number {place}\n" for place in range(6))


def call(folder: Path, *words: str) -> Result:
    """Run a command in this process, in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(main, words)


def write_job(folder: Path) -> None:
    """Write the files that the docs name, and run the job: two shards of a tiny model."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    (folder / "prompts.csv").write_text(PROMPTS)
    check = {"name": "watermark", "entry": "tests.own_checks:silent"}
    job = settings(Path("prompts.csv"), "out", shard={"images": 4}, gates={"checks": [check]})
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    nightly = job | {"name": "postcards", "skip_existing": True}
    (folder / "postcards.yaml").write_text(yaml.safe_dump(nightly))
    (folder / "cluster-job.yaml").write_text((EXAMPLES / "backfill.yaml").read_text())
    result = call(folder, "run", "job.yaml")
    assert result.exit_code == 0, result.output


def only_run(folder: Path) -> Path:
    """The folder of its run."""
    (run,) = (folder / "out").glob("tiny-*")
    return run
