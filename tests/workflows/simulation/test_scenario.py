"""A job played through: it is cut as planning cuts it, and its limits are the design's own."""

from dataclasses import replace
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.simulation.run import Fleet
from imagekiln.workflows.simulation.scenario import (
    Conditions,
    Simulation,
    cut_images,
    seconds_per_image,
    simulate,
)
from imagekiln.workflows.simulation.sizes import MIB, workflow_bytes
from tests import jobs

GPU = load_profile("gpu")


def remote_job(**settings: object) -> Job:
    return jobs.job(
        Path("unused"), None, prompts="s3://prompts/*.parquet", output="s3://images", **settings
    )


def simulated(images: int, gpus: int = 8, **settings: object) -> Simulation:
    job = remote_job(shard={"seconds_per_image": 1.0}, **settings)
    conditions = Conditions(Fleet(gpus=gpus, seconds_per_image=1.0), price_per_hour=2.0)
    return simulate(job, GPU, images, conditions)


def limits(simulation: Simulation) -> dict[str, float]:
    return {limit.name: limit.share for limit in simulation.limits}


def test_images_are_cut_as_planning_cuts_them(tmp_path: Path) -> None:
    prompts = {"prompt": [f"a red circle number {number}" for number in range(50)]}
    settings: dict[str, object] = {
        "defaults": {"steps": 1},
        "shard": {"minutes": 1, "seconds_per_image": 4.0},
        "part": {"images": 5},
        "batch": {"images": 5},
    }
    plan = jobs.plan(tmp_path, prompts, **settings).plan
    sharding = cut_images(jobs.job(tmp_path, None, **settings), 50)
    assert sharding.part_images == plan.part_images
    assert sharding.shard_images == tuple(shard.images for shard in plan.shards)


def test_run_is_charged_for_the_time_of_all_gpus() -> None:
    simulation = simulated(100_000)
    assert simulation.cost == pytest.approx(simulation.run.gpu_time.total / 3600 * 2.0)
    assert simulation.run.images == 100_000
    assert simulation.seconds > 100_000 / 8


@pytest.mark.slow
def test_limits_come_in_the_order_in_which_a_growing_run_meets_them() -> None:
    simulation = simulated(60_000_000, gpus=500)
    shares = [limit.share for limit in simulation.limits]
    assert shares == sorted(shares, reverse=True)
    assert simulation.limits[0].name == "disk of planning"
    assert simulation.limits[0].grows_to is not None
    assert simulation.limits[0].grows_to < 60_000_000
    assert limits(simulation)["size of a workflow"] < 1


@pytest.mark.slow
def test_disk_that_is_made_larger_is_no_limit_any_more() -> None:
    assert _share_of_planning_disk(2.0) > 1
    assert _share_of_planning_disk(10.0) < 1


def _share_of_planning_disk(gigabytes: float) -> float:
    steps = GPU.steps.model_copy(update={"disk": gigabytes})
    profile = GPU.model_copy(update={"steps": steps})
    conditions = Conditions(Fleet(gpus=500, seconds_per_image=1.0))
    job = remote_job(shard={"seconds_per_image": 1.0})
    return limits(simulate(job, profile, 6_000_000, conditions))["disk of planning"]


@pytest.mark.slow
def test_more_shards_than_a_plan_holds_are_refused_as_planning_refuses_them() -> None:
    with pytest.raises(BadInput, match="at most 100000 fit"):
        simulated(300_000_000)


def test_job_whose_images_take_nobody_knows_how_long_is_refused() -> None:
    with pytest.raises(BadInput, match=r"shard\.seconds_per_image"):
        seconds_per_image(remote_job())


# What `make test-cluster-scale` measured with profile `test`: docs/performance.md.
@pytest.mark.parametrize(("pods", "mib"), [(500, 0.73), (2000, 0.37)])
def test_size_of_a_workflow_is_what_was_measured_on_a_cluster(pods: int, mib: float) -> None:
    size = workflow_bytes(remote_job(), load_profile("test"), pods, attempts=pods)
    assert size / MIB == pytest.approx(mib, rel=0.15)


def test_pods_that_were_retried_make_a_workflow_larger() -> None:
    once = workflow_bytes(remote_job(), GPU, 100, attempts=100)
    twice = workflow_bytes(remote_job(), GPU, 100, attempts=200)
    assert once * 1.2 < twice < once * 2


def test_faster_gpus_draw_sooner() -> None:
    job = remote_job(shard={"seconds_per_image": 1.0})
    slow = Fleet(gpus=8, seconds_per_image=1.0)
    fast = replace(slow, seconds_per_image=0.5)
    seconds = [simulate(job, GPU, 50_000, Conditions(fleet)).seconds for fleet in (slow, fast)]
    assert seconds[1] < 0.6 * seconds[0]
