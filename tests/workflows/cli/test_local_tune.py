"""The command that tunes: what it takes, and what it prints."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imagekiln.steps.generate import tune
from imagekiln.steps.job.tuning_file import read_tuning_file
from imagekiln.workflows.cli.main import main
from tests.tuned import entry, tuned_file

JOB = {
    "name": "tiny",
    "prompts": "bundled:prompts.parquet",
    "output": "out",
    "model": {"id": "bundled:shapes", "dtype": "float32"},
    "defaults": {"steps": 2},
    "device": "cpu",
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job file, and at most two batch sizes to try."""
    monkeypatch.setattr(tune, "tune", partial(tune.tune, max_batch=2))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return str(tmp_path / "job.yaml")


def _kiln(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_it_measures_once_and_the_plan_and_the_estimate_use_it(job: str, tmp_path: Path) -> None:
    done = _kiln("tune", job)
    assert done.exit_code == 0, done.output
    file = f"{tmp_path}/tuning.yaml"
    (found,) = read_tuning_file(file).entries
    assert re.search(rf"\n64 x 64  cpu +{found.batch} ", done.stdout)
    assert done.stdout.endswith(f"\nTuning file: {file}. Name it in the job as batch.tuning.\n")
    assert [line.split(":")[0] for line in done.stderr.splitlines()[-2:]] == [
        "64 x 64, 1 at once",
        "64 x 64, 2 at once",
    ]
    again = _kiln("tune", job, "--format", "json")
    assert json.loads(again.stdout) == {
        "file": file,
        "entries": [found.model_dump(mode="json")],
        "measured": 0,
    }
    use = ("--set", f"batch.tuning={file}", "--set", f"output={tmp_path}/out")
    assert "No tuning entry" not in _kiln("plan", job, *use).stdout
    assert "unknown" not in _kiln("estimate", job, *use).stdout


def test_sizes_and_the_file_are_as_asked(job: str, tmp_path: Path) -> None:
    file = str(tmp_path / "kept" / "here.yaml")
    done = _kiln("tune", job, "--size", "32x64", "--size", "64X32", "--file", file)
    assert done.exit_code == 0, done.output
    entries = read_tuning_file(file).entries
    assert [(each.width, each.height) for each in entries] == [(32, 64), (64, 32)]


def test_a_plan_says_where_nothing_is_known_of_the_gpu(job: str, tmp_path: Path) -> None:
    file = tuned_file(tmp_path, entry(digest="sha256:0"))
    done = _kiln("plan", job, "--set", f"batch.tuning={file}", "--set", f"output={tmp_path}/out")
    assert "\nNo tuning entry fits this model, dtype, speed and GPU: " in done.stdout
