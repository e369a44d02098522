"""How fast each shard was."""

from imagekiln.steps.aggregate.throughput import MAX_SLOWEST, Throughput, summarize_throughput
from imagekiln.steps.runs.stats import ShardStats, StageSeconds


def _told(shard: int, seconds: float, images: int = 100) -> ShardStats:
    return ShardStats(shard, 1, images, 1, 8, "cuda", StageSeconds(seconds))


def test_rates_come_by_shard_and_a_silent_shard_has_none() -> None:
    found = summarize_throughput(4, [_told(2, 50.0), _told(0, 100.0), _told(3, 10.0, images=0)])
    assert found.rates == (1.0, None, 2.0, None)


def test_slow_shards_are_named_the_slowest_first() -> None:
    found = summarize_throughput(
        100, [_told(number, 100.0 + (number >= 80) * number) for number in range(100)]
    )
    assert (found.median, found.slow) == (1.0, 20)
    assert [each.shard for each in found.slowest] == list(range(99, 99 - MAX_SLOWEST, -1))


def test_shards_of_equal_speed_have_no_slow_one() -> None:
    assert (
        summarize_throughput(3, [_told(number, 100.0 + number) for number in range(3)]).slowest
        == ()
    )


def test_no_shard_that_told_is_no_throughput() -> None:
    assert summarize_throughput(3, []) == Throughput()
