"""The statistics of a shard, over all attempts at it, and the start of a process."""

import pytest

from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    elapsed_seconds,
)


def test_attempts_add_up_and_the_last_batch_size_stands() -> None:
    long = StageSeconds(total=7.0, load=1.0, passes={"detail": 1.0})
    short = StageSeconds(total=3.0, load=1.0, passes={"detail": 0.5})
    first = ShardStats(3, 1, 4, 1, 8, "H100", long, {}, busy_share=0.5, peak_memory=9)
    last = ShardStats(3, 1, 2, 1, 4, "L4", short, {}, busy_share=0.9, peak_memory=7)
    stats = first + last
    assert (stats.attempts, stats.images, stats.parts, stats.max_batch_size) == (2, 6, 2, 4)
    assert stats.seconds == StageSeconds(total=10.0, load=2.0, passes={"detail": 1.5})
    assert stats.busy_share == pytest.approx((0.5 * 6 + 0.9 * 2) / 8)
    assert stats.peak_memory == 9


def test_time_by_the_clock_counts_shards_at_once_only_once() -> None:
    times = [(0.0, 10.0), (5.0, 15.0), (6.0, 7.0), (100.0, 101.0)]
    stats = [
        ShardStats(
            number, 1, 1, 1, 8, "cuda", StageSeconds(), started_at=started_at, ended_at=ended_at
        )
        for number, (started_at, ended_at) in enumerate(times)
    ]
    assert elapsed_seconds(stats) == 16.0
    assert elapsed_seconds([ShardStats(0, 1, 1, 1, 8, "cuda", StageSeconds())]) is None
