"""Benchmarks stand for what they say, and run."""

import json
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench.gpu.__main__ import SECTIONS, main, make_work
from tests.bench.gpu.archive import main as archive_command
from tests.bench.gpu.calls import CALLS
from tests.bench.gpu.memory_limit import draw, draw_limited
from tests.bench.gpu.report import Report
from tests.bench.random_models import SETTINGS, local, parameters
from tests.bench.timeline import BatchEnd, find_phases
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


@pytest.mark.parametrize(("value", "ok"), [(1.0, True), (0.5, False), (float("nan"), False)])
def test_a_figure_beside_its_bounds(tmp_path: Path, value: float, ok: bool) -> None:
    path = tmp_path / "figures.jsonl"
    Report(0.0, path).figure("faults.memory_ran_out", value)
    assert read_figures(path)["faults.memory_ran_out"]["ok"] is ok


def test_a_spent_budget_omits_sections(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["machine", *TINY, "--models", str(tmp_path), "--budget", "0.000001"]
    )
    assert result.exit_code == 0, result.output
    assert "machine: omitted, the budget is spent." in result.output


def test_calls_name_sections_and_models() -> None:
    for call in CALLS.values():
        assert call.seconds < 600
        for stage in call.stages:
            assert stage.model in SETTINGS
            assert {*stage.sections} <= {*SECTIONS}


def test_calls_end_within_a_quarter_of_an_hour() -> None:
    # The machine takes a minute and a half to start.
    assert CALLS["1"].seconds + CALLS["2"].seconds <= 15 * 60 - 90


def test_calls_have_every_section_but_the_jobs_with_shortcuts() -> None:
    stages = [stage for call in CALLS.values() for stage in call.stages]
    sections = {name for stage in stages for name in stage.sections}
    assert {*SECTIONS} - sections == {"fp8", "shortcuts"}


@pytest.mark.slow
def test_memory_that_runs_out_is_provoked(tmp_path: Path) -> None:
    work = replace(tiny_work(tmp_path, 2), part=4)
    half = replace(work, batch=work.batch // 2)
    limited, later = draw_limited(work, limit=0)
    assert limited.batch == half.batch
    assert limited.digests == draw(half).digests
    assert later.batch == work.batch


def test_steady_rate_leaves_out_warm_up_and_last_batch() -> None:
    ends = [BatchEnd(seconds, 8) for seconds in (30.0, 36.0, 40.0, 42.0, 44.0, 46.0, 55.0)]
    phases = find_phases(60.0, ends)
    assert phases.steady_rate == pytest.approx(4.0)
    assert phases.head == 40.0
    assert phases.tail == 14.0


def test_an_archive_holds_what_wheels_hold(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "color-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("color/__init__.py", "RED = 1\n")
        wheel.writestr("color/types.pyi", "RED: int\n")
    archive = tmp_path / "site.tar.xz"
    result = CliRunner().invoke(archive_command, [str(wheels), str(archive)])
    assert result.exit_code == 0, result.output
    with tarfile.open(archive) as packed:
        names = {member.name for member in packed.getmembers() if member.isfile()}
    assert names == {"color/__init__.py"}
