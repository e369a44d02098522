"""How long a job takes, by its plan."""

from pathlib import Path

import pytest

from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.run_time import RunTime
from tests.jobs import job, plan

ROWS = {"prompt": [f"p{number}" for number in range(36)]}
MEASURED: dict[str, object] = {"shard": {"images": 8, "seconds_per_image": 100}}


def test_time_is_shared_by_gpus_that_have_a_shard() -> None:
    time = RunTime(gpu_hours=12.0, source="measured", shards=4)
    assert [time.hours_on(gpus) for gpus in (1, 3, 4, 16)] == [12.0, 4.0, 3.0, 3.0]
    assert time.describe(16) == "About 3 h 0 min on 4 GPUs at once (12 GPU-hours, measured)."


def test_time_on_one_gpu_stands_beside_that_on_a_cluster() -> None:
    assert RunTime(12.0, "measured", shards=4).describe_both(16) == (
        "About 12 h 0 min on 1 GPU, about 3 h 0 min on the 4 that a cluster gives at once "
        "(12 GPU-hours, measured)."
    )
    one = RunTime(12.0, "measured", shards=1)
    assert (
        one.describe_both(16)
        == one.describe(1)
        == ("About 12 h 0 min on 1 GPU (12 GPU-hours, measured).")
    )


def test_several_days_are_said_in_days() -> None:
    assert RunTime(9368.0, "", shards=99).describe(16).startswith("About 24.4 days on 16 GPUs")


def test_plan_and_estimate_agree(tmp_path: Path) -> None:
    planned = plan(tmp_path, ROWS, **MEASURED)
    estimated = estimate(job(tmp_path, **MEASURED))
    assert planned.time is not None
    assert planned.time.gpu_hours == estimated.gpu_hours == pytest.approx(1.0)
    assert estimated.gpus == 5  # one for each shard
    assert estimated.hours == pytest.approx(0.2)


def test_plan_that_existed_is_not_estimated_again(tmp_path: Path) -> None:
    plan(tmp_path, ROWS, **MEASURED)
    assert plan(tmp_path, **MEASURED).time is None
