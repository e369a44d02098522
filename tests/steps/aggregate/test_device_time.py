"""The time of devices: its uses, its cost, and the speed of shards."""

from dataclasses import replace

import pytest

from imagekiln.steps.aggregate.device_time import (
    MAX_SLOWEST,
    Throughput,
    summarize_spending,
    summarize_throughput,
)
from imagekiln.steps.runs.attempts import NOTHING, Spent
from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    max_peak_memory,
    mean_busy_share,
)

# A minute of loading, then ten of which nine were spent on drawing.
SECONDS = StageSeconds(total=660, load=60, text=20, denoise=500, decode=20)
STATS = ShardStats(0, 1, 100, 10, 4, "H100", SECONDS)
SPENT = Spent(seconds=680, useful=680, loading=80, attempts=1, ended=1)
PRICES = 3.6


def test_the_uses_add_up_to_all_that_was_spent() -> None:
    result = summarize_spending([STATS], SPENT, PRICES, made=100, ok=90)
    seconds = result.gpu_seconds
    assert (seconds.drawing, seconds.loading, seconds.repeated) == (540, 80, 0)
    assert seconds.drawing + seconds.loading + seconds.idle == seconds.total == 680
    assert result.cost == pytest.approx(0.68)
    assert result.not_ok_seconds == pytest.approx(54)
    assert (result.attempts, result.lost_attempts) == (1, 0)


def test_passes_are_drawing() -> None:
    stats = replace(STATS, seconds=replace(SECONDS, denoise=200, passes={"a": 200.0, "b": 100.0}))
    result = summarize_spending([stats], SPENT, PRICES, made=100, ok=90)
    assert result.gpu_seconds.drawing == 540


def test_what_a_killed_process_did_after_its_last_part_is_repeated() -> None:
    killed = Spent(seconds=400, useful=300, loading=80, attempts=1)
    result = summarize_spending([STATS], SPENT + killed, PRICES, made=100, ok=100)
    assert result.gpu_seconds.repeated == 100
    assert result.gpu_seconds.total == 1080
    assert (result.attempts, result.lost_attempts) == (2, 1)
    assert result.gpu_seconds.drawing == 540


def test_what_a_process_loaded_that_was_stopped_before_its_first_part_counts_once() -> None:
    stopped = replace(STATS, images=0, parts=0, seconds=StageSeconds(total=90, load=60, denoise=20))
    dropped = Spent(seconds=100, useful=0, loading=0, attempts=1, ended=1)
    result = summarize_spending([stopped, STATS], SPENT + dropped, PRICES, made=100, ok=100)
    seconds = result.gpu_seconds
    assert (seconds.total, seconds.loading, seconds.repeated) == (780, 80, 100)
    uses = seconds.drawing + seconds.loading + seconds.idle + seconds.repeated
    assert uses == pytest.approx(seconds.total)


def test_a_run_that_left_no_statistics_has_a_cost_too() -> None:
    killed = Spent(seconds=400, useful=300, loading=80, attempts=1)
    result = summarize_spending([], killed, PRICES, made=0, ok=0)
    assert (result.gpu_seconds.total, result.gpu_seconds.repeated) == (400, 100)
    assert result.cost == pytest.approx(0.4)


def test_statistics_without_attempts_count() -> None:
    seconds = summarize_spending([STATS], NOTHING, PRICES, made=0, ok=0).gpu_seconds
    assert (seconds.repeated, seconds.loading, seconds.drawing) == (0, 60, 540)


def test_images_that_another_process_committed_first_are_repeated() -> None:
    stats = replace(STATS, images=75, repeated_images=25)
    seconds = summarize_spending([stats], SPENT, PRICES, made=75, ok=75).gpu_seconds
    assert seconds.repeated == pytest.approx(150)


def test_each_kind_of_device_has_its_price() -> None:
    table = {"H100": 3.0, "L4": 1.0}
    stats = [STATS, replace(STATS, shard=1, device="L4")]
    result = summarize_spending(stats, NOTHING, table, made=200, ok=200)
    assert [(price.device, price.per_hour) for price in result.prices] == [("H100", 3), ("L4", 1)]
    assert result.price_per_hour == pytest.approx(2)

    unpriced = summarize_spending([STATS], SPENT, {"L4": 1.0}, made=100, ok=100)
    assert (unpriced.cost, unpriced.prices[0].per_hour) == (None, None)


def _shard_stats(shard: int, seconds: float, images: int = 100) -> ShardStats:
    return ShardStats(shard, 1, images, 1, 8, "cuda", StageSeconds(seconds))


def test_slow_shards_are_named_the_slowest_first() -> None:
    few = [_shard_stats(2, 50.0), _shard_stats(0, 100.0), _shard_stats(3, 10.0, images=0)]
    result = summarize_throughput(few)
    assert (result.shards, result.least, result.median, result.most) == (2, 1.0, 2.0, 2.0)
    assert summarize_throughput([]) == Throughput()
    many = [_shard_stats(number, 100.0 + (number >= 80) * number) for number in range(100)]
    result = summarize_throughput(many)
    assert (result.median, result.slow) == (1.0, 20)
    assert [each.shard for each in result.slowest] == list(range(99, 99 - MAX_SLOWEST, -1))


def test_device_usage_counts_shards_by_their_time_after_loading() -> None:
    def stats(busy: float | None, total: float, load: float = 0.0) -> ShardStats:
        seconds = StageSeconds(total=total, load=load)
        return replace(_shard_stats(0, 1.0), seconds=seconds, busy_share=busy)

    both = [stats(1.0, 110.0, 10.0), stats(0.5, 320.0, 20.0)]
    assert mean_busy_share(both) == pytest.approx((100 + 150) / 400)
    assert mean_busy_share([stats(None, 100.0)]) is None
    assert mean_busy_share([stats(None, 100.0), stats(0.25, 8.0)]) == 0.25
    assert mean_busy_share([stats(0.0, 5.0, 5.0)]) is None
    peaks = [replace(_shard_stats(0, 1.0), peak_memory=peak) for peak in (None, 3, 7)]
    assert max_peak_memory(peaks) == 7
    assert max_peak_memory(peaks[:1]) is None
