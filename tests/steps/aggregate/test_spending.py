"""What a run cost and what for, by its attempts and the statistics of its shards."""

from dataclasses import replace

import pytest

from imagekiln.steps.aggregate.spending import summarize_spending
from imagekiln.steps.runs.attempts import NOTHING, Spent
from imagekiln.steps.runs.stats import ShardStats, StageSeconds

# A minute of loading, then ten of which nine were spent on drawing.
SECONDS = StageSeconds(total=660, load=60, text=20, denoise=500, decode=20)
STATS = ShardStats(0, 1, 100, 10, 4, "H100", SECONDS)
SPENT = Spent(seconds=680, useful=680, loading=80, attempts=1, ended=1)
PRICES = 3.6


def test_the_uses_add_up_to_all_that_was_spent() -> None:
    result = summarize_spending([STATS], SPENT, PRICES, drawn=100, ok=90)
    seconds = result.gpu_seconds
    assert (seconds.drawing, seconds.loading, seconds.repeated) == (540, 80, 0)
    assert seconds.drawing + seconds.loading + seconds.idle == seconds.total == 680
    assert result.cost is not None
    assert result.cost.total == pytest.approx(0.68)
    assert result.not_ok_seconds == pytest.approx(54)
    assert (result.attempts, result.lost_attempts) == (1, 0)


def test_passes_are_drawing() -> None:
    stats = replace(STATS, seconds=replace(SECONDS, denoise=200, passes={"a": 200.0, "b": 100.0}))
    result = summarize_spending([stats], SPENT, PRICES, drawn=100, ok=90)
    assert result.gpu_seconds.drawing == 540


def test_what_a_killed_process_did_after_its_last_part_is_repeated() -> None:
    killed = Spent(seconds=400, useful=300, loading=80, attempts=1)
    result = summarize_spending([STATS], SPENT + killed, PRICES, drawn=100, ok=100)
    assert result.gpu_seconds.repeated == 100
    assert result.gpu_seconds.total == 1080
    assert (result.attempts, result.lost_attempts) == (2, 1)
    # The part of its time that led to images is divided as that of other processes is.
    assert result.gpu_seconds.drawing == pytest.approx(0.9 * (600 + 220))


def test_what_a_process_loaded_that_was_stopped_before_its_first_part_counts_once() -> None:
    stopped = replace(STATS, images=0, parts=0, seconds=StageSeconds(total=90, load=60, denoise=20))
    dropped = Spent(seconds=100, useful=0, loading=0, attempts=1, ended=1)
    result = summarize_spending([stopped, STATS], SPENT + dropped, PRICES, drawn=100, ok=100)
    seconds = result.gpu_seconds
    assert (seconds.total, seconds.loading, seconds.repeated) == (780, 80, 100)
    uses = seconds.drawing + seconds.loading + seconds.idle + seconds.repeated
    assert uses == pytest.approx(seconds.total)


def test_a_run_that_left_no_statistics_has_a_cost_too() -> None:
    killed = Spent(seconds=400, useful=300, loading=80, attempts=1)
    result = summarize_spending([], killed, PRICES, drawn=0, ok=0)
    assert (result.gpu_seconds.total, result.gpu_seconds.repeated) == (400, 100)
    assert result.cost is not None
    assert result.cost.total == pytest.approx(0.4)


def test_a_process_that_never_loaded_its_model_repeats_what_it_did() -> None:
    died = Spent(seconds=50, useful=0, loading=50, attempts=1)
    seconds = summarize_spending([], died, PRICES, drawn=0, ok=0).gpu_seconds
    assert (seconds.repeated, seconds.loading, seconds.drawing) == (50, 0, 0)


def test_runs_without_attempts_have_the_time_of_their_shards() -> None:
    seconds = summarize_spending([STATS], NOTHING, PRICES, drawn=100, ok=100).gpu_seconds
    assert (seconds.total, seconds.loading, seconds.drawing) == (660, 60, 540)


def test_images_that_another_process_committed_first_are_repeated() -> None:
    stats = replace(STATS, images=75, repeated_images=25)
    seconds = summarize_spending([stats], SPENT, PRICES, drawn=75, ok=75).gpu_seconds
    assert seconds.repeated == pytest.approx(150)


def test_each_kind_of_device_has_its_price() -> None:
    table = {"H100": 3.0, "L4": 1.0}
    stats = [STATS, replace(STATS, shard=1, device="L4")]
    result = summarize_spending(stats, NOTHING, table, drawn=200, ok=200)
    assert [(price.device, price.per_hour) for price in result.prices] == [("H100", 3), ("L4", 1)]
    assert result.price_per_hour == pytest.approx(2)


def test_the_cost_is_unknown_where_a_device_has_no_price() -> None:
    table = {"L4": 1.0}
    result = summarize_spending([STATS], SPENT, table, drawn=100, ok=100)
    assert result.cost is None
    assert result.prices[0].per_hour is None
