"""Tuning for real: the bundled model on the CPU, with little effort."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate import tune
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import (
    MAX_BATCH_IMAGES,
    BatchRate,
    TuningResult,
    read_tuning_file,
)
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.image import ImageParameters
from tests.jobs import job

ROWS = {"prompt": ["a red circle"] * 3, "seed": [1, 2, 3]}


def _job(folder: Path, **settings: object) -> Job:
    return job(folder, ROWS, **{"device": "cpu", "defaults": {"steps": 2}, **settings})


def _tuned(
    job: Job,
    folder: Path,
    *sizes: tuple[int, int],
    again: bool = False,
    max_batch: int = MAX_BATCH_IMAGES,
) -> TuningResult:
    file = str(folder / "tuning.yaml")
    return tune.tune(job, file, sizes, again=again, max_batch=max_batch)


def _rate(batch: int, seconds: float, peak_gib: float | None = None) -> BatchRate:
    return BatchRate(batch=batch, images_per_second=batch / seconds, peak_gib=peak_gib)


def _measures(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[[int], BatchRate | None]
) -> list[int]:
    """Let a stand-in measure, and note what is asked of it."""
    asked: list[int] = []

    def noted(_denoiser: Denoiser, _parameters: ImageParameters, batch: int) -> BatchRate | None:
        asked.append(batch)
        return measure(batch)

    monkeypatch.setattr(tune, "measure_batch", noted)
    return asked


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "DRAWS", 1)


@pytest.mark.slow
def test_what_is_tuned_is_what_planning_freezes(tmp_path: Path) -> None:
    asked = _job(tmp_path)
    lines: list[str] = []
    done = tune.tune(asked, str(tmp_path / "tuning.yaml"), report=lines.append, max_batch=4)
    (found,) = done.entries
    assert (done.measured, found.gpu, found.gpu_gib, found.width, found.height) == (
        1,
        "cpu",
        None,
        64,
        64,
    )
    assert (found.steps, found.guided, {*found.versions}) == (
        2,
        True,
        {"torch", "diffusers", "transformers"},
    )
    assert [each.batch for each in found.measured] == [1, 2, 4]
    assert found.batch in (1, 2, 4)
    assert [line.split(": ")[0] for line in lines] == [
        f"64 x 64, {batch} at once" for batch in (1, 2, 4)
    ]
    assert read_tuning_file(done.file).entries == (found,)
    planned = make_plan(_job(tmp_path, batch={"tuning": done.file})).plan
    assert [each.images for each in planned.batch_sizes] == [found.batch]


def test_a_second_time_nothing_is_measured_unless_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _measures(monkeypatch, lambda batch: _rate(batch, float(batch)))
    first = _tuned(_job(tmp_path), tmp_path)
    assert asked == [1, 2, 4]
    assert _tuned(_job(tmp_path), tmp_path) == TuningResult(first.file, first.entries, 0)
    assert asked == [1, 2, 4]
    assert _tuned(_job(tmp_path), tmp_path, again=True).measured == 1
    assert len(asked) == 6


def test_each_size_is_found_once_and_kept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def measure(batch: int) -> BatchRate:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise TryAgain("the device failed")
        return _rate(batch, 1.0 * batch)

    _measures(monkeypatch, measure)
    with pytest.raises(TryAgain):
        _tuned(_job(tmp_path), tmp_path, (64, 64), (64, 64), (128, 64))
    assert [
        (each.width, each.height) for each in read_tuning_file(f"{tmp_path}/tuning.yaml").entries
    ] == [(64, 64)]


def test_where_nothing_fits_it_is_told_and_nothing_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _measures(monkeypatch, lambda _: None)
    with pytest.raises(TryAgain, match="not even one image of 64 x 64 fits in the memory of cpu"):
        _tuned(_job(tmp_path), tmp_path)
    assert read_tuning_file(str(tmp_path / "tuning.yaml")).entries == ()


@pytest.mark.parametrize("size", [(60, 64), (0, 64), (8192, 8192)])
def test_a_size_that_rows_could_not_have_is_refused(size: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"sides are multiples of 8, with at most 16777216 pixels"):
        _tuned(_job(tmp_path), tmp_path, size)


class Device:
    """Takes a second for as many images as it draws at once, and memory for each image."""

    def __init__(self, at_once: float, fits: int = MAX_BATCH_IMAGES, each: int = 0) -> None:
        self.asked: list[int] = []
        self._at_once, self._fits, self._each = at_once, fits, each

    def __call__(self, batch: int) -> BatchRate | None:
        self.asked.append(batch)
        if batch > self._fits:
            return None
        return _rate(batch, max(1.0, batch / self._at_once), batch * self._each or None)


def _found(
    measure: Callable[[int], BatchRate | None],
    memory: float = math.inf,
    most: int = MAX_BATCH_IMAGES,
) -> int:
    return tune.choose_batch(tune.measure_rates(measure, memory, most)).batch


@pytest.mark.parametrize(("at_once", "batch"), [(0.5, 1), (1, 1), (2, 2), (5, 8), (60, 64)])
def test_the_smallest_batch_that_saturates_is_chosen(at_once: float, batch: int) -> None:
    device = Device(at_once)
    assert _found(device) == batch
    assert device.asked[-1] == 4 * batch


def test_memory_and_the_largest_batch_end_the_search() -> None:
    assert _found(Device(100, fits=8)) == 8
    assert _found(Device(100, each=10), memory=79) == 4
    assert _found(Device(100, each=10), memory=80) == 8
    assert _found(Device(100), most=4) == 4
    assert tune.measure_rates(Device(1, fits=0), math.inf, 8) == []
