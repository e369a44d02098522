from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
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


def test_estimate_says_that_a_named_run_is_planned(tmp_path: Path) -> None:
    named = job(tmp_path, {"prompt": ["a"]}, run_id="2026-11-21")
    assert estimate(named).planned_run is None
    make_plan(named)
    said = estimate(job(tmp_path, {"prompt": ["a", "b"]}, run_id="2026-11-21"))
    assert said.images == 2
    assert "2026-11-21: is planned already, with 1 image." in str(said.planned_run)


def test_gpu_hours_follow_pixels_and_steps_and_cost_follows_hours(tmp_path: Path) -> None:
    result = estimate(job(tmp_path, COLUMNS, **SETTINGS), price_per_hour=3.0)
    assert result.gpu_hours == pytest.approx((21 * 2 + 4 * 4 + 5 * 4) / 3600)
    assert result.cost == pytest.approx((21 * 2 + 4 * 4 + 5 * 4) / 1200)


def test_gigabytes_follow_pixels(tmp_path: Path) -> None:
    assert estimate(job(tmp_path, COLUMNS, **SETTINGS)).gigabytes == pytest.approx(
        34 * 64 * 64 * 1.5 / 1e9
    )


@pytest.mark.parametrize(
    ("encoding", "each"),
    [({"kind": "jpeg"}, 0.3), ({"kind": "webp"}, 0.1), ({"kind": "webp", "lossless": True}, 1.2)],
)
def test_gigabytes_follow_the_encoding(
    encoding: dict[str, object], each: float, tmp_path: Path
) -> None:
    result = estimate(job(tmp_path, COLUMNS, **SETTINGS, encoding=encoding))
    assert result.gigabytes == pytest.approx(34 * 64 * 64 * each / 1e9)


def test_model_that_nobody_knows_has_no_hours_and_no_cost(tmp_path: Path) -> None:
    result = estimate(job(tmp_path, {"prompt": ["a"]}), price_per_hour=3.0)
    assert (result.gpu_hours, result.cost) == (None, None)


def test_hours_without_a_price_have_no_cost(tmp_path: Path) -> None:
    result = estimate(job(tmp_path, {"prompt": ["a"]}, shard={"seconds_per_image": 1}))
    assert result.gpu_hours is not None
    assert result.cost is None


def test_estimate_refuses_what_planning_refuses(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="1 of 2 rows was rejected"):
        estimate(job(tmp_path, {"prompt": [None, "a"]}))


def test_the_jobs_price_is_taken_unless_another_is_given(tmp_path: Path) -> None:
    priced = job(
        tmp_path, {"prompt": ["a"] * 2}, shard={"seconds_per_image": 3600}, price_per_hour=2.0
    )
    assert estimate(priced).cost == 2.0
    assert estimate(priced, 3.0).cost == 3.0
