"""How fast each shard was, which shards were slow, and how well their devices were used."""

from collections.abc import Sequence
from dataclasses import dataclass

from imagekiln.steps.runs.stats import ShardStats, largest_by_number

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
class Throughput:
    """Images a second by shard, in the plan's order; None where a shard has no rate.

    `slow` counts the shards under 80 % of the `median`, and `slowest` has at most ten of them, the
    slowest first.
    """

    rates: tuple[float | None, ...] = ()
    median: float = 0.0
    slow: int = 0
    slowest: tuple[ShardTime, ...] = ()


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
    rates = {shard.shard: _round_rate(shard) for shard in measured}
    median_shard = measured[len(measured) // 2]
    median = median_shard.images_per_second
    slow_rate = SLOW_RATIO * median
    slow = [shard for shard in measured if shard.images_per_second < slow_rate]
    return Throughput(
        rates=tuple(rates.get(number) for number in range(shards)),
        median=_round_rate(median_shard),
        slow=len(slow),
        slowest=tuple(
            ShardTime(shard.shard, shard.images, shard.seconds.total, shard.attempts)
            for shard in slow[:MAX_SLOWEST]
        ),
    )


def _round_rate(shard: ShardStats) -> float:
    return float(f"{shard.images_per_second:.{SIGNIFICANT_DIGITS}g}")
