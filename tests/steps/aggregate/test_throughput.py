"""How fast each shard was, and how well devices were used."""

from dataclasses import replace

import pytest

from imagekiln.steps.aggregate.throughput import (
    MAX_SLOWEST,
    Throughput,
    summarize_throughput,
)
from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    max_peak_memory,
    mean_busy_share,
)


def _shard_stats(shard: int, seconds: float, images: int = 100) -> ShardStats:
    return ShardStats(shard, 1, images, 1, 8, "cuda", StageSeconds(seconds))


def test_rates_come_by_shard_and_a_shard_without_statistics_has_none() -> None:
    result = summarize_throughput(
        4, [_shard_stats(2, 50.0), _shard_stats(0, 100.0), _shard_stats(3, 10.0, images=0)]
    )
    assert result.rates == (1.0, None, 2.0, None)


def test_slow_shards_are_named_the_slowest_first() -> None:
    result = summarize_throughput(
        100, [_shard_stats(number, 100.0 + (number >= 80) * number) for number in range(100)]
    )
    assert (result.median, result.slow) == (1.0, 20)
    assert [each.shard for each in result.slowest] == list(range(99, 99 - MAX_SLOWEST, -1))


def test_shards_of_equal_speed_have_no_slow_one() -> None:
    assert (
        summarize_throughput(
            3, [_shard_stats(number, 100.0 + number) for number in range(3)]
        ).slowest
        == ()
    )


def test_without_statistics_there_is_no_throughput() -> None:
    assert summarize_throughput(3, []) == Throughput()


def _device_stats(busy: float | None, total: float, load: float = 0.0) -> ShardStats:
    return replace(
        _shard_stats(0, 1.0), seconds=StageSeconds(total=total, load=load), busy_share=busy
    )


def test_a_shard_counts_by_its_time_after_loading() -> None:
    stats = [_device_stats(1.0, 110.0, 10.0), _device_stats(0.5, 320.0, 20.0)]
    assert mean_busy_share(stats) == pytest.approx((100 + 150) / 400)


def test_the_peak_is_that_of_the_fullest_device() -> None:
    stats = [replace(_shard_stats(0, 1.0), peak_memory=peak) for peak in (None, 3, 7)]
    assert max_peak_memory(stats) == 7
    assert max_peak_memory(stats[:1]) is None


def test_shards_without_usage_do_not_count() -> None:
    silent = [_device_stats(None, 100.0), _device_stats(None, 50.0)]
    assert mean_busy_share(silent) is None
    assert mean_busy_share([*silent, _device_stats(0.25, 8.0)]) == 0.25


def test_a_shard_that_only_loaded_is_no_division_by_nothing() -> None:
    assert mean_busy_share([_device_stats(0.0, 5.0, 5.0)]) is None
