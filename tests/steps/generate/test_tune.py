"""Tuning for real: the bundled model on the CPU, with little effort."""

from collections.abc import Callable, Sequence
from pathlib import Path

import diffusers
import pytest
import torch

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.generate import tune
from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.trial import BatchMeasurement, Trial, TrialBudget
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import MAX_BATCH_IMAGES, TuningResult, read_tuning_file
from imagekiln.steps.models.families import family_of
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.image import DrawnImage
from imagekiln.steps.runs.plan import Plan
from tests.jobs import job
from tests.models import Untyped

QUICK = TrialBudget(steps=3, seconds=0.05)
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
    return tune.tune(job, file, sizes, QUICK, again=again, max_batch=max_batch)


def _measures(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[[int], BatchMeasurement | None]
) -> list[int]:
    """Let a stand-in measure, and note what is asked of it."""
    asked: list[int] = []

    def noted(_self: Trial, batch: int) -> BatchMeasurement | None:
        asked.append(batch)
        return measure(batch)

    monkeypatch.setattr(Trial, "measure", noted)
    return asked


@pytest.mark.slow
def test_what_is_tuned_is_what_planning_freezes(tmp_path: Path) -> None:
    asked = _job(tmp_path)
    lines: list[str] = []
    done = tune.tune(
        asked, str(tmp_path / "tuning.yaml"), effort=QUICK, told=lines.append, max_batch=4
    )
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
    asked = _measures(monkeypatch, lambda batch: BatchMeasurement(batch, float(batch)))
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

    def measure(batch: int) -> BatchMeasurement:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise TryAgain("the device failed")
        return BatchMeasurement(batch, 1.0 * batch)

    _measures(monkeypatch, measure)
    with pytest.raises(TryAgain):
        _tuned(_job(tmp_path), tmp_path, (64, 64), (64, 64), (128, 64))
    assert [
        (each.width, each.height) for each in read_tuning_file(f"{tmp_path}/tuning.yaml").entries
    ] == [(64, 64)]


def test_a_family_that_draws_one_by_one_is_measured_at_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _measures(monkeypatch, lambda batch: BatchMeasurement(batch, 1.0))
    monkeypatch.setattr(tune, "family_of", lambda _: family_of("ZImagePipeline"))
    _tuned(_job(tmp_path), tmp_path)
    assert asked == [1]


def test_where_nothing_fits_it_is_told_and_nothing_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _measures(monkeypatch, lambda _: None)
    with pytest.raises(TryAgain, match="not even one image of 64 x 64 fits in the memory of cpu"):
        _tuned(_job(tmp_path), tmp_path)
    assert not (tmp_path / "tuning.yaml").exists()


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ((60, 64), "60 x 64: the model's sides are multiples of 8 pixels. Choose another size."),
        ((0, 64), "0 x 64: the model's sides are multiples of 8 pixels. Choose another size."),
        (
            (8192, 8192),
            "8192 x 8192: has more than 16777216 pixels. Choose another size.",
        ),
    ],
)
def test_a_size_that_rows_could_not_have_is_refused(
    size: tuple[int, int], told: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as caught:
        _tuned(_job(tmp_path), tmp_path, size)
    assert str(caught.value) == told


def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no such model folder"):
        _tuned(_job(tmp_path, model={"id": "./absent"}), tmp_path)


def test_memory_that_ran_out_for_one_size_does_not_slow_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []

    def load(plan: Plan) -> Denoiser:
        denoiser = load_denoiser(plan)
        draw = denoiser.draw

        def watched(*args: Untyped) -> Sequence[DrawnImage]:
            modes.append(denoiser.vae_decoder.mode)
            return draw(*args)

        monkeypatch.setattr(denoiser, "draw", watched)
        return denoiser

    decode = diffusers.AutoencoderKL.decode
    full = iter([True])

    def decode_once_full(vae: Untyped, *args: Untyped, **kwargs: Untyped) -> Untyped:
        if next(full, False):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return decode(vae, *args, **kwargs)

    monkeypatch.setattr(tune, "load_denoiser", load)
    monkeypatch.setattr(diffusers.AutoencoderKL, "decode", decode_once_full)
    _tuned(_job(tmp_path), tmp_path, (64, 64), (128, 64), max_batch=1)
    assert modes[0] == "whole"
    first_of_next = modes.index("whole", 1)
    assert set(modes[1:first_of_next]) == {"slices"}
    assert set(modes[first_of_next:]) == {"whole"}
