from pathlib import Path

import pytest

from imagekiln.steps.plan.estimate import RunTime, estimate
from tests import runs
from tests.jobs import job, plan

COLUMNS = {
    "prompt": ["a " * 50, "b", "b", None, "c", "d"],
    "seed": [1, 1, 1, 1, 1, 1],
    "images": [20, 1, 1, 1, 4, 5],
    "width": [64, 64, 64, 64, 128, 64],
    "steps": [30, 30, 30, 30, 30, 60],
}
SETTINGS: dict[str, object] = {
    "defaults": {"steps": 30},
    "limits": {"rejected_share": 1},
    "batch": {"images": 4},
    "part": {"images": 8},
    "shard": {"images": 16, "seconds_per_image": 2.0},
}


def test_estimate_agrees_with_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    settings = job(tmp_path, COLUMNS, **SETTINGS)
    before = {*tmp_path.rglob("*")}
    result = estimate(settings)
    assert {*tmp_path.rglob("*")} == before
    run_plan = plan(tmp_path, COLUMNS, **SETTINGS).plan
    assert (result.rows, result.rejected_rows, result.duplicate_images) == (6, 1, 1)
    assert (result.images, result.shards, result.truncated_prompts) == (30, 2, 1)
    assert (run_plan.counts.images, len(run_plan.shards), run_plan.counts.truncated_prompts) == (
        30,
        2,
        1,
    )
    assert (
        result.parts
        == sum(run_plan.part_count(number) for number in range(len(run_plan.shards)))
        == 4
    )


def test_gpu_hours_follow_pixels_and_steps_and_cost_follows_hours(tmp_path: Path) -> None:
    result = estimate(job(tmp_path, COLUMNS, **SETTINGS), price_per_hour=3.0)
    assert result.gpu_hours == pytest.approx((21 * 2 + 4 * 4 + 5 * 4) / 3600)
    assert result.cost == pytest.approx((21 * 2 + 4 * 4 + 5 * 4) / 1200)


@pytest.mark.parametrize(
    ("encoding", "each"),
    [({"kind": "jpeg"}, 0.3), ({"kind": "webp"}, 0.1), ({"kind": "webp", "lossless": True}, 1.2)],
)
def test_gigabytes_follow_the_encoding(
    encoding: dict[str, object], each: float, tmp_path: Path
) -> None:
    copies = [{"to": str(tmp_path / "a")}, {"to": str(tmp_path / "b"), "format": "files"}]
    result = estimate(job(tmp_path, COLUMNS, **SETTINGS, encoding=encoding, export=copies))
    assert result.gigabytes == pytest.approx(34 * 64 * 64 * each / 1e9)
    assert result.export_gigabytes == 2 * result.gigabytes


def test_model_that_nobody_knows_has_no_hours_and_no_cost(tmp_path: Path) -> None:
    result = estimate(job(tmp_path, {"prompt": ["a"]}), price_per_hour=3.0)
    assert (result.gpu_hours, result.cost) == (None, None)


def test_the_jobs_price_is_taken_unless_another_is_given(tmp_path: Path) -> None:
    priced = job(
        tmp_path, {"prompt": ["a"] * 2}, shard={"seconds_per_image": 3600}, price_per_hour=2.0
    )
    assert estimate(priced).cost == 2.0
    assert estimate(priced, 3.0).cost == 3.0


def test_time_is_shared_by_gpus_that_have_a_shard() -> None:
    time = RunTime(gpu_hours=12.0, source="measured", shards=4)
    assert [time.hours_on(gpus) for gpus in (1, 3, 4, 16)] == [12.0, 4.0, 3.0, 3.0]
    assert time.describe(16) == "About 3 h 0 min on 4 GPUs at once (12 GPU-hours, measured)."


def test_the_latest_runs_on_the_gpu_count(tmp_path: Path) -> None:
    prompts = runs.write_prompts(tmp_path / "prompts.parquet")
    settings = runs.job(prompts, str(tmp_path / "out"), device="cuda")
    runs.write_rate(settings, "on-cpu", images=300, seconds_per_image=1.0)
    assert estimate(settings).time_source is None

    runs.write_rate(settings, "large", images=255, seconds_per_image=1.0, device="NVIDIA L4")
    runs.write_rate(settings, "small", images=1, seconds_per_image=9.0, device="NVIDIA L4")
    source = "measured by 2 runs, 256 images, on NVIDIA L4"
    assert estimate(settings).time_source == source
    assert estimate(settings, gpu="nvidia-l4").time_source == source
    assert estimate(settings, gpu="NVIDIA-H100-80GB-HBM3").time_source is None
