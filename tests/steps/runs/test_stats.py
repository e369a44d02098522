"""The statistics of a shard, over all attempts at it."""

import pytest

from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    add_attempt,
    elapsed_seconds,
)


def attempt(images: int = 4, batch: int = 8) -> ShardStats:
    seconds = StageSeconds(total=2.0, load=0.5, denoise=1.0, encode=0.25, write=0.125)
    return ShardStats(3, 1, images, 1, batch, "cpu", seconds, {"torch": "2"})


def test_attempts_add_up_and_the_last_batch_size_stands() -> None:
    stats = add_attempt(None, attempt(4, 8))
    for images, batch in ((2, 4), (1, 4)):
        stats = add_attempt(stats, attempt(images, batch))
    assert (stats.attempts, stats.images, stats.parts, stats.max_batch_size) == (3, 7, 3, 4)
    assert stats.seconds == StageSeconds(total=6.0, load=1.5, denoise=3.0, encode=0.75, write=0.375)


def test_what_the_device_did_is_added_up_over_attempts() -> None:
    busy_for_long = StageSeconds(total=7.0, load=1.0)
    first = ShardStats(3, 1, 4, 1, 8, "H100", busy_for_long, {}, busy_share=0.5, peak_memory=9)
    last = ShardStats(3, 1, 4, 1, 8, "L4", StageSeconds(total=3.0, load=1.0), {}, 0.9, 7)
    stats = add_attempt(first, last)
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
    older = ShardStats(0, 1, 1, 1, 8, "cuda", StageSeconds())
    assert elapsed_seconds([older]) is None
