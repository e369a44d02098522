"""The command that tunes: what it takes, and what it prints."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imagekiln.steps.generate import tune
from imagekiln.steps.job.tuning_file import TuningEntry, TuningResult, read_tuning_file
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.cli.plan_text import format_tuning
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
    assert re.match(rf"64 x 64 on cpu: batches of {found.batch} images?, ", done.stdout)
    assert done.stdout.endswith(f"\nTuning file: {file}\nName it in the job as batch.tuning.\n")
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
    assert f"\nBatches: {found.batch} of 64 x 64" in _kiln("plan", job, *use).stdout
    assert "unknown" not in _kiln("estimate", job, *use).stdout


def test_sizes_and_the_file_are_as_asked(job: str, tmp_path: Path) -> None:
    file = str(tmp_path / "kept" / "here.yaml")
    done = _kiln("tune", job, "--size", "32x64", "--size", "64X32", "--file", file)
    assert done.exit_code == 0, done.output
    entries = read_tuning_file(file).entries
    assert [(each.width, each.height) for each in entries] == [(32, 64), (64, 32)]


@pytest.mark.parametrize("size", ["64", "64x", "x64", "-64x64", "64x64x64", "0x40000000", "axb"])
def test_what_is_no_size_is_refused(size: str, job: str) -> None:
    done = _kiln("tune", job, f"--size={size}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is not a size. Write WIDTHxHEIGHT, such as 1024x768." in done.stderr


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            entry(),
            "64 x 64 on a GPU: batches of 4 images, 0.5 s per image.\n"
            "  batch   4          2 images/s      3.5 GiB",
        ),
        (
            entry(gpu="a\x1bGPU", measured=[]),
            "64 x 64 on a\ufffdGPU: batches of 4 images, 0.5 s per image.",
        ),
    ],
)
def test_what_was_found_is_said(found: TuningEntry, said: str) -> None:
    assert (
        format_tuning(TuningResult("t.yaml", (found,), 1))
        == f"{said}\nTuning file: t.yaml\nName it in the job as batch.tuning."
    )


def test_a_plan_says_where_nothing_is_known_of_the_gpu(job: str, tmp_path: Path) -> None:
    file = tuned_file(tmp_path, entry(digest="sha256:0"))
    done = _kiln("plan", job, "--set", f"batch.tuning={file}", "--set", f"output={tmp_path}/out")
    advice = "no tuning entry fits this model, dtype, speed and GPU. `imagekiln tune` measures one."
    assert done.stdout.endswith(f"\nBatches of 8 images: {advice}\n")
