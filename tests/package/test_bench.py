"""Benchmarks stand for what they say, and run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench.gpu.__main__ import main, make_work
from tests.bench.random_models import local, parameters
from tests.bench.work import Work

TINY = ("--model", "tiny-sd15", "--device", "cpu", "--dtype", "float32", "--ways", "eager")
QUICK_SECTIONS = ("denoiser", "decoder", "fp8")


def read_figures(path: Path) -> dict[str, dict[str, object]]:
    figures: dict[str, dict[str, object]] = {}
    lines = path.read_text().splitlines()
    for line in lines:
        entry = json.loads(line)
        if "figure" in entry:
            figures[entry["figure"]] = entry
    return figures


def tiny_work(folder: Path, batches: int) -> Work:
    work = make_work("tiny-sd15", batches, device="cpu", dtype="float32")
    return replace(work, model=local("tiny-sd15", folder))


@pytest.mark.parametrize(
    ("name", "published"),
    [("sd15", 859_520_964), ("sdxl", 2_567_463_684), ("flux", 11_901_408_320)],
)
def test_a_model_of_random_weights_has_as_many_as_the_real_one(name: str, published: int) -> None:
    assert parameters(name) == published


@pytest.mark.slow
def test_quick_sections_of_the_gpu_benchmark_run_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "figures.jsonl"
    arguments = [*QUICK_SECTIONS, *TINY, "--json", str(path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    sections = {name.partition(".")[0] for name in read_figures(path)}
    assert sections == {"denoiser", "decoder"}
    assert "fp8: needs CUDA." in result.output
