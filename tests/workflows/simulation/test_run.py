"""A simulated run: each image is made once or counted missing, each second is paid once."""

import math
from collections.abc import Iterator

import pytest

from imagekiln.steps.plan.sharding import Sharding
from imagekiln.workflows.profiles.profile import Retries
from imagekiln.workflows.simulation.run import (
    Fleet,
    Lifetimes,
    SimulatedRun,
    constant_losses,
    simulate_run,
)
from imagekiln.workflows.templates.child_workflows import MAX_PODS
from imagekiln.workflows.templates.pod_retries import retry_wait

PART = 10
SECONDS = 2.0
NO_LOSSES = constant_losses(0.0, seed=0)
AT_ONCE = Fleet(
    gpus=1,
    seconds_per_image=SECONDS,
    load_seconds=0.0,
    node_seconds=0.0,
    idle_seconds=0.0,
    detection_seconds=0.0,
    pods_per_second=math.inf,
)


def shards(count: int, images: int = 95) -> Sharding:
    return Sharding(PART, (images,) * count)


def lived(*lifetimes: float) -> Lifetimes:
    """The first machines live so long, all others forever."""
    remaining: Iterator[float] = iter(lifetimes)
    return lambda: next(remaining, math.inf)


def cloudy_run(seed: int = 7, workers: int = 1, limit: int = 3) -> SimulatedRun:
    """A run that loses most of its nodes: an hour of work in a shard, and half of them an hour."""
    fleet = Fleet(gpus=40, seconds_per_image=30.0)
    losses = constant_losses(0.5, seed)
    return simulate_run(shards(200), fleet, Retries(limit=limit), workers, losses)


@pytest.mark.parametrize("workers", [1, 4])
def test_every_image_is_made_once_or_missing_however_many_nodes_are_lost(workers: int) -> None:
    run = cloudy_run(workers=workers, limit=1)
    assert run.lost_nodes > 10
    assert run.missing > 0, "with so many losses and one retry, some shards are given up"
    assert run.images + run.missing == 200 * 95
    assert run.images * 30.0 <= run.gpu_time.drawing <= 200 * 95 * 30.0
    assert run.most_attempts == 2


def test_no_image_is_missing_if_retries_suffice() -> None:
    run = cloudy_run(limit=100)
    assert run.missing == 0
    assert run.gpu_time.drawing == pytest.approx(200 * 95 * 30.0)
    assert 0 < run.gpu_time.repeated < run.lost_nodes * PART * 30.0


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    assert cloudy_run() == cloudy_run()
    assert cloudy_run() != cloudy_run(seed=8)


def test_one_gpu_takes_the_time_of_its_work() -> None:
    run = simulate_run(shards(3), AT_ONCE, Retries(), 1, NO_LOSSES)
    assert run.seconds == pytest.approx(3 * 95 * SECONDS)
    assert run.gpu_time.total == pytest.approx(run.seconds)


def test_workers_of_a_pod_share_its_shards_to_the_last_part() -> None:
    run = simulate_run(shards(4, images=100), AT_ONCE, Retries(), 4, NO_LOSSES)
    assert run.pods == 1
    assert run.seconds == pytest.approx(100 * SECONDS)


def test_lost_node_loses_the_part_at_hand_and_what_it_had_committed_stays() -> None:
    after_two_parts_and_a_half = 25 * SECONDS
    losses = lived(after_two_parts_and_a_half)
    run = simulate_run(shards(1, images=100), AT_ONCE, Retries(limit=1), 1, losses)
    assert run.images == 100
    assert run.gpu_time.repeated == pytest.approx(5 * SECONDS)
    assert run.seconds == pytest.approx(105 * SECONDS + retry_wait(1, 1))


def test_pod_without_retries_left_keeps_its_parts_and_misses_the_others() -> None:
    run = simulate_run(shards(1), AT_ONCE, Retries(limit=0), 1, lived(25 * SECONDS))
    assert run.missing == 95 - 2 * PART
    assert run.images == 2 * PART


def test_workflows_follow_one_another_so_gpus_wait_at_the_end_of_each() -> None:
    gpus = MAX_PODS - 1  # one pod of each workflow is left over
    fleet = Fleet(gpus=gpus, seconds_per_image=SECONDS, load_seconds=0.0, node_seconds=0.0)
    run = simulate_run(shards(2 * MAX_PODS), fleet, Retries(), 1, NO_LOSSES)
    assert run.seconds > 4 * 95 * SECONDS
    assert run.gpu_time.idle > run.gpu_time.drawing / 2


def test_run_without_images_ends_at_once() -> None:
    run = simulate_run(Sharding(PART, ()), AT_ONCE, Retries(), 1, NO_LOSSES)
    assert (run.seconds, run.images, run.pods) == (0.0, 0, 0)
