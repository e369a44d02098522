"""A small job and a finished run, for every command."""

from pathlib import Path

import pytest
import yaml

from imagekiln.steps.storage.store import Store
from tests import runs
from tests.workflows.cli.commands import ROWS


@pytest.fixture
def job(tmp_path: Path) -> str:
    """A job file for six images."""
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", ROWS)
    values = runs.settings(prompts, str(tmp_path / "out"), shard={"images": 4})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(values))
    return str(tmp_path / "job.yaml")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A finished run of 20 images."""
    return runs.finished(tmp_path / "finished")
