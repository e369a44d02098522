"""How fast each shard was, which shards were slow, and how well their devices were used."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from imagekiln.steps.runs.start_times import StartSeconds
from imagekiln.steps.runs.stats import (
    ShardStats,
    largest_by_number,
    max_peak_memory,
    mean_busy_share,
)

MAX_SLOWEST = 10
SLOW_RATIO = 0.8  # of the median rate: slower shards are worth a look
SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True, slots=True)
class ShardTime:
    """One shard's images and seconds, over all its attempts."""

    shard: int
    images: int
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Starts:
    """How long processes took to their first step: how many of them, the median, the slowest."""

    count: int
    median: StartSeconds
    slowest: StartSeconds
    slowest_shard: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """Images a second by shard, in the plan's order; None where a shard has no rate.

    `slow` counts the shards under 80 % of the `median`, and `slowest` has at most ten of them, the
    slowest first. `starts` is None where no shard timed its start.
    """

    rates: tuple[float | None, ...] = ()
    median: float = 0.0
    slow: int = 0
    slowest: tuple[ShardTime, ...] = ()
    starts: Starts | None = None


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """How well devices were used; None where no shard left such a figure.

    `busy` is the share of wall time after loading in which the devices computed, `peak_memory` the
    most bytes in use on one of them.
    """

    busy: float | None = None
    peak_memory: int | None = None


def summarize_throughput(shards: int, stats: Sequence[ShardStats]) -> Throughput:
    """The rates of a run of so many shards."""
    measured = [shard for shard in largest_by_number(stats) if shard.images_per_second > 0]
    if not measured:
        return Throughput()

    measured.sort(key=lambda shard: shard.images_per_second)
    rates = {shard.shard: _round_significant(shard.images_per_second) for shard in measured}
    middle = len(measured) // 2
    median = measured[middle].images_per_second
    slow_rate = SLOW_RATIO * median
    slow = [shard for shard in measured if shard.images_per_second < slow_rate]
    return Throughput(
        rates=tuple(rates.get(number) for number in range(shards)),
        median=_round_significant(median),
        slow=len(slow),
        slowest=tuple(_shard_time(shard) for shard in slow[:MAX_SLOWEST]),
        starts=summarize_starts(stats),
    )


def summarize_starts(stats: Sequence[ShardStats]) -> Starts | None:
    """The starts of the processes of all rounds; None where none was timed."""
    starts = [(shard.start, shard.shard) for shard in stats if shard.start is not None]
    if not starts:
        return None
    starts.sort(key=lambda pair: pair[0].total)
    median, _ = starts[len(starts) // 2]
    slowest, slowest_shard = starts[-1]
    return Starts(len(starts), median, slowest, slowest_shard)


def summarize_usage(stats: Sequence[ShardStats]) -> DeviceUsage:
    """The usage of all shards' devices, each shard weighted by its time."""
    return DeviceUsage(mean_busy_share(stats), max_peak_memory(stats))


def _shard_time(stats: ShardStats) -> ShardTime:
    return ShardTime(
        shard=stats.shard,
        images=stats.images,
        seconds=stats.seconds.total,
        attempts=stats.attempts,
    )


def _round_significant(rate: float) -> float:
    magnitude = math.floor(math.log10(rate))
    digits = SIGNIFICANT_DIGITS - 1 - magnitude
    return round(rate, digits)
