"""How fast each shard was, and which were slow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from imagekiln.steps.runs.stats import ShardStats, max_peak_memory, mean_busy_share

MAX_SLOWEST = 10
SLOW_RATIO = 0.8  # of the median: what is slower is worth a look
SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True, slots=True)
class ShardTime:
    """One shard's images and seconds, over all its attempts."""

    shard: int
    images: int
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """Images a second by shard, in the plan's order; None where it made nothing, or did not tell.

    `slowest` are those under 80 % of the `median`, the slowest first, at most ten of `slow`.
    """

    rates: tuple[float | None, ...] = ()
    median: float = 0.0
    slow: int = 0
    slowest: tuple[ShardTime, ...] = ()


def summarize_throughput(shards: int, told: Sequence[ShardStats]) -> Throughput:
    """The rates of a run of so many shards."""
    most = {
        each.shard: each for each in sorted(told, key=lambda each: each.images)
    }  # of several rounds, the largest
    made = sorted(
        (each for each in most.values() if each.images_per_second > 0),
        key=lambda each: each.images_per_second,
    )
    if not made:
        return Throughput()
    rates = {each.shard: _round_significant(each.images_per_second) for each in made}
    median = made[len(made) // 2].images_per_second
    slow = [each for each in made if each.images_per_second < SLOW_RATIO * median]
    slowest = (
        ShardTime(each.shard, each.images, each.seconds.total, each.attempts)
        for each in slow[:MAX_SLOWEST]
    )
    return Throughput(
        tuple(map(rates.get, range(shards))), _round_significant(median), len(slow), tuple(slowest)
    )


def _round_significant(rate: float) -> float:
    return round(rate, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(rate)))


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What the shards told of their devices; None where none did.

    `busy` is the share of wall time after loading in which the devices computed, and `peak_memory` the most that one of
    them held, in bytes.
    """

    busy: float | None = None
    peak_memory: int | None = None


def summarize_usage(told: Sequence[ShardStats]) -> DeviceUsage:
    """The use of all shards' devices: a shard that took longer counts for more."""
    return DeviceUsage(mean_busy_share(told), max_peak_memory(told))
