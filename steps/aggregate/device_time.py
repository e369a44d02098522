"""Device time of a run: its uses, its cost, and the throughput of shards."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from imagekiln.steps.job.execution import PricePerHour, find_price
from imagekiln.steps.runs.attempts import Spent
from imagekiln.steps.runs.stats import ShardStats, StageSeconds, mean_busy_share

SECONDS_PER_HOUR = 3600
MAX_SLOWEST = 10
SLOW_RATIO = 0.8  # of the median rate; slower shards are reported


@dataclass(frozen=True, slots=True)
class UseSeconds:
    """Device-seconds by use, and their total.

    `drawing` is text encoding, denoising and decoding. `loading` is starting processes, loading
    the model and compiling. `idle` is waiting for encoding or writing, and the ends of shards.
    `repeated` is discarded work. Processes may be killed or stopped after their last part, or lose
    the race to commit a part.
    """

    drawing: float = 0.0
    loading: float = 0.0
    idle: float = 0.0
    repeated: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class DevicePrice:
    """The hours of a device type, with its price per hour and the source of the price.

    `per_hour` is None if the price is unknown.
    """

    device: str
    gpu_hours: float
    per_hour: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Spending:
    """Time and cost of a run and its retries, over all attempts.

    `cost` is in the currency of the prices; None if a device has no price. `not_ok_seconds` is the
    part of `drawing` for images that are not ok: blank, filtered, failed, or replaced by a retry.
    `attempts` counts processes and pods, and `lost_attempts` those without a recorded end. Their
    time after the last record is not counted.
    """

    gpu_seconds: UseSeconds = UseSeconds()
    cost: float | None = None
    not_ok_seconds: float = 0.0
    attempts: int = 0
    lost_attempts: int = 0
    prices: tuple[DevicePrice, ...] = ()

    @property
    def price_per_hour(self) -> float | None:
        """Mean price per hour; None without prices."""
        if self.cost is None or not self.gpu_seconds.total:
            return None
        return self.cost / self.gpu_seconds.total * SECONDS_PER_HOUR


def summarize_spending(
    stats: Sequence[ShardStats], spent: Spent, prices: PricePerHour | None, *, made: int, ok: int
) -> Spending:
    """Summarize attempts and shard statistics, for `made` images of which `ok` are usable."""
    gpu_seconds = _seconds_by_use(stats, spent)
    used = _device_prices(stats, spent, prices)
    mean_price = _mean_price(used)
    share_not_ok = max(0.0, 1.0 - ok / made) if made else 0.0
    return Spending(
        gpu_seconds=gpu_seconds,
        cost=None if mean_price is None else mean_price * gpu_seconds.total / SECONDS_PER_HOUR,
        not_ok_seconds=gpu_seconds.drawing * share_not_ok,
        attempts=spent.attempts,
        lost_attempts=spent.attempts - spent.ended,
        prices=used,
    )


def _seconds_by_use(stats: Sequence[ShardStats], spent: Spent) -> UseSeconds:
    seconds = sum((shard.seconds for shard in stats), StageSeconds())
    total = max(spent.seconds, seconds.total)
    dropped = spent.seconds - spent.useful
    loading = (spent.loading or seconds.load) + seconds.compile
    working = max(0.0, total - dropped - loading)

    computed = seconds.text + seconds.denoise + seconds.decode
    computed += sum(seconds.passes.values())
    busy = mean_busy_share(stats)
    if busy is not None:  # prompts encoded during a batch are counted twice
        computed = min(computed, busy * (seconds.total - seconds.load))
    # Another process committed these images first.
    dropped_images = sum(shard.repeated_images for shard in stats)
    images = dropped_images + sum(shard.images for shard in stats)
    kept_share = 1.0 - dropped_images / max(1, images)
    drawing = min(computed, working) * kept_share
    kept = working * kept_share
    return UseSeconds(
        drawing=drawing,
        loading=loading,
        idle=kept - drawing,
        repeated=dropped + working - kept,
        total=total,
    )


def _device_prices(
    stats: Sequence[ShardStats], spent: Spent, prices: PricePerHour | None
) -> tuple[DevicePrice, ...]:
    """Return the hours and price of each device type; unknown if no shard has statistics."""
    hours: dict[str, float] = defaultdict(float)
    for shard in stats:
        hours[shard.device] += shard.seconds.total / SECONDS_PER_HOUR
    if not hours and spent.seconds:
        hours[""] = spent.gpu_hours

    used = []
    for device, gpu_hours in sorted(hours.items()):
        price = find_price(prices, device or None)
        of_device = DevicePrice(device, gpu_hours)
        if price is not None:
            of_device = replace(of_device, per_hour=price.per_hour, source=price.source)
        used.append(of_device)
    return tuple(used)


def _mean_price(used: Sequence[DevicePrice]) -> float | None:
    """Compute the mean price per hour; None if a device type has no price."""
    hours = sum(device.gpu_hours for device in used)
    cost = 0.0
    for device in used:
        if device.per_hour is None:
            return None
        cost += device.gpu_hours * device.per_hour
    return cost / hours if hours else None


@dataclass(frozen=True, slots=True)
class ShardTime:
    """Images and seconds of a shard, over all its attempts."""

    shard: int
    images: int
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of the `shards` that were measured, in images per second.

    `slow` counts shards below 80 % of the `median`. `slowest` has up to ten of them, slowest first.
    """

    shards: int = 0
    least: float = 0.0
    median: float = 0.0
    most: float = 0.0
    slow: int = 0
    slowest: tuple[ShardTime, ...] = ()


def summarize_throughput(stats: Sequence[ShardStats]) -> Throughput:
    """Summarize the rates of shards. A shard and its retries count once, by the most images."""
    largest = {shard.shard: shard for shard in sorted(stats, key=lambda shard: shard.images)}
    measured = [shard for shard in largest.values() if shard.images_per_second > 0]
    if not measured:
        return Throughput()
    measured.sort(key=lambda shard: shard.images_per_second)
    rates = [shard.images_per_second for shard in measured]
    median = rates[len(rates) // 2]
    slow = [shard for shard in measured if shard.images_per_second < SLOW_RATIO * median]
    return Throughput(
        shards=len(rates),
        least=rates[0],
        median=median,
        most=rates[-1],
        slow=len(slow),
        slowest=tuple(
            ShardTime(shard.shard, shard.images, shard.seconds.total, shard.attempts)
            for shard in slow[:MAX_SLOWEST]
        ),
    )
