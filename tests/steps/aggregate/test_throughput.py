"""How fast each shard was, and how well devices were used."""

from dataclasses import replace

import pytest

from imagekiln.steps.aggregate.throughput import (
    MAX_SLOWEST,
    DeviceUsage,
    Starts,
    Throughput,
    summarize_throughput,
    summarize_usage,
)
from imagekiln.steps.runs.start_times import StartSeconds
from imagekiln.steps.runs.stats import ShardStats, StageSeconds


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


def test_starts_are_those_of_the_shards_that_timed_one() -> None:
    def started(shard: int, total: float) -> ShardStats:
        return replace(_shard_stats(shard, 100.0), start=StartSeconds(total=total))

    stats = [started(0, 30.0), started(1, 90.0), _shard_stats(2, 100.0), started(3, 20.0)]
    starts = summarize_throughput(4, stats).starts
    assert starts == Starts(3, StartSeconds(total=30.0), StartSeconds(total=90.0), 1)
    assert summarize_throughput(4, stats[2:3]).starts is None


def test_without_statistics_there_is_no_throughput() -> None:
    assert summarize_throughput(3, []) == Throughput()


def _device_stats(
    busy: float | None, total: float, load: float = 0.0, peak_memory: int | None = None
) -> ShardStats:
    return ShardStats(
        0,
        1,
        10,
        1,
        8,
        "cuda",
        StageSeconds(total=total, load=load),
        busy_share=busy,
        peak_memory=peak_memory,
    )


def test_a_shard_counts_by_its_time_after_loading() -> None:
    assert summarize_usage(
        [_device_stats(1.0, 110.0, 10.0), _device_stats(0.5, 320.0, 20.0)]
    ).busy == pytest.approx((100 + 150) / 400)


def test_the_peak_is_that_of_the_fullest_device() -> None:
    assert (
        summarize_usage(
            [_device_stats(1.0, 1.0, peak_memory=3), _device_stats(1.0, 1.0, peak_memory=7)]
        ).peak_memory
        == 7
    )


def test_shards_without_usage_do_not_count() -> None:
    silent = [_device_stats(None, 100.0), _device_stats(None, 50.0)]
    assert summarize_usage(silent) == DeviceUsage() == summarize_usage([])
    assert summarize_usage([*silent, _device_stats(0.25, 8.0)]).busy == 0.25


def test_a_shard_that_only_loaded_is_no_division_by_nothing() -> None:
    assert summarize_usage([_device_stats(0.0, 5.0, 5.0)]) == DeviceUsage()
