"""How well devices were used."""

import pytest

from imagekiln.steps.aggregate.throughput import DeviceUsage, summarize_usage
from imagekiln.steps.runs.stats import ShardStats, StageSeconds


def _told(
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
        [_told(1.0, 110.0, 10.0), _told(0.5, 320.0, 20.0)]
    ).busy == pytest.approx((100 + 150) / 400)


def test_the_fullest_device_tells_the_peak() -> None:
    assert (
        summarize_usage(
            [_told(1.0, 1.0, peak_memory=3), _told(1.0, 1.0, peak_memory=7)]
        ).peak_memory
        == 7
    )


def test_shards_that_told_nothing_do_not_count() -> None:
    silent = [_told(None, 100.0), _told(None, 50.0)]
    assert summarize_usage(silent) == DeviceUsage() == summarize_usage([])
    assert summarize_usage([*silent, _told(0.25, 8.0)]).busy == 0.25


def test_a_shard_that_only_loaded_is_no_division_by_nothing() -> None:
    assert summarize_usage([_told(0.0, 5.0, 5.0)]) == DeviceUsage()
