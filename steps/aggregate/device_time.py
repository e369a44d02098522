"""The time of a run's devices: what it went into, what it cost, and how fast shards were."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from imagekiln.steps.job.execution import PricePerHour, find_price
from imagekiln.steps.runs.attempts import Spent
from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    largest_by_number,
    mean_busy_share,
)

SECONDS_PER_HOUR = 3600
MAX_SLOWEST = 10
SLOW_RATIO = 0.8  # of the median rate: slower shards are worth a look
SIGNIFICANT_DIGITS = 4  # of a rate


@dataclass(frozen=True, slots=True)
class UseAmounts:
    """Device-seconds, or money, by use, and what they add up to.

    `drawing` is encoding texts, denoising and decoding. `loading` is starting processes, loading
    the model and compiling. `idle` is waiting for encoding or writing, and the ends of shards.
    `repeated` is work that was dropped: of processes that were killed or stopped after their last
    part, and of parts that another process committed first.
    """

    drawing: float = 0.0
    loading: float = 0.0
    idle: float = 0.0
    repeated: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class DevicePrice:
    """The price of a kind of device for an hour, its source, and the hours of use.

    `per_hour` is None if the price table has none.
    """

    device: str
    gpu_hours: float
    per_hour: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Spending:
    """Time and cost of a run and its retries, over all attempts.

    `cost` is in the currency of the prices; None if a device has no price. Of the time for
    drawing, `not_ok_seconds` went into images that are not ok: blank, filtered, failed, or made
    again by a later retry. `attempts` are processes and pods. `lost_attempts` of them never said
    how they ended: what they did after they last wrote is not counted.
    """

    gpu_seconds: UseAmounts = UseAmounts()
    cost: UseAmounts | None = None
    not_ok_seconds: float = 0.0
    attempts: int = 0
    lost_attempts: int = 0
    prices: tuple[DevicePrice, ...] = ()

    @property
    def price_per_hour(self) -> float | None:
        """The mean price of an hour; None without prices."""
        if self.cost is None or not self.gpu_seconds.total:
            return None
        return self.cost.total / self.gpu_seconds.total * SECONDS_PER_HOUR


def summarize_spending(
    stats: Sequence[ShardStats], spent: Spent, prices: PricePerHour | None, *, drawn: int, ok: int
) -> Spending:
    """Add up attempts and the statistics of shards, which made `drawn` images, `ok` of use."""
    gpu_seconds = _seconds_by_use(stats, spent)
    used = _device_prices(stats, spent, prices)
    mean_price = _mean_price(used)
    cost = None
    if mean_price is not None:
        per_second = mean_price / SECONDS_PER_HOUR
        cost = UseAmounts(*(seconds * per_second for seconds in astuple(gpu_seconds)))
    share_not_ok = max(0.0, 1.0 - ok / drawn) if drawn else 0.0
    return Spending(
        gpu_seconds=gpu_seconds,
        cost=cost,
        not_ok_seconds=gpu_seconds.drawing * share_not_ok,
        attempts=spent.attempts,
        lost_attempts=max(0, spent.attempts - spent.ended),
        prices=used,
    )


def _seconds_by_use(stats: Sequence[ShardStats], spent: Spent) -> UseAmounts:
    """The seconds of the attempts, divided as those of the shards are."""
    seconds = sum((shard.seconds for shard in stats), StageSeconds())
    working = max(0.0, seconds.total - seconds.load)
    total = max(spent.seconds, seconds.total)
    dropped = max(0.0, spent.seconds - spent.useful)
    # Shards also count what attempts loaded that ended before their first part: it is dropped.
    useful_loading = min(spent.loading, spent.useful)
    loading = max(useful_loading, seconds.load - dropped)
    useful = max(0.0, total - dropped - loading)

    # If all processes ended well, time that is in no shard's statistics is idle: several share a
    # pod, and wait for the last of them. Else it is the work of those that left no statistics.
    idle_end = 0.0
    if spent.attempts == spent.ended and working > 0:
        idle_end = max(0.0, useful - working)
    rest = useful - idle_end

    # Another process was first with these images.
    dropped_images = sum(shard.repeated_images for shard in stats)
    drawn_images = sum(shard.images for shard in stats) + dropped_images
    repeated = rest * dropped_images / max(1, drawn_images)
    rest -= repeated

    drawing, compiling = _working_shares(stats, seconds, working)
    waiting = 1.0 - drawing - compiling
    return UseAmounts(
        drawing=rest * drawing,
        loading=loading + rest * compiling,
        idle=idle_end + rest * waiting,
        repeated=dropped + repeated,
        total=total,
    )


def _working_shares(
    stats: Sequence[ShardStats], seconds: StageSeconds, working: float
) -> tuple[float, float]:
    """The shares of drawing and compiling in the time after loading."""
    if working <= 0:
        return 1.0, 0.0
    compiling = min(1.0, seconds.compile / working)
    computed = seconds.text + seconds.denoise + seconds.decode
    computed += sum(seconds.passes.values())
    busy = mean_busy_share(stats)
    # Texts may be encoded during a batch, and are then counted twice.
    drawing = min(
        computed / working,
        1.0 if busy is None else busy,
        1.0 - compiling,
    )
    return drawing, compiling


def _device_prices(
    stats: Sequence[ShardStats], spent: Spent, prices: PricePerHour | None
) -> tuple[DevicePrice, ...]:
    """The price of each kind of device; of unknown ones if no shard left statistics."""
    hours: dict[str, float] = defaultdict(float)
    for shard in stats:
        hours[shard.device] += shard.seconds.total / SECONDS_PER_HOUR
    if not hours and spent.seconds:
        hours[""] = spent.gpu_hours

    used = []
    for device, gpu_hours in sorted(hours.items()):
        price = find_price(prices, device or None)
        per_hour = None if price is None else price.per_hour
        source = "" if price is None else price.source
        used.append(DevicePrice(device, gpu_hours, per_hour, source))
    return tuple(used)


def _mean_price(used: Sequence[DevicePrice]) -> float | None:
    """The mean price of an hour; None if a kind of device has none."""
    prices = [device.per_hour for device in used if device.per_hour is not None]
    if not used or len(prices) < len(used):
        return None
    hours = sum(device.gpu_hours for device in used)
    if not hours:
        return prices[0]
    priced_devices = zip(prices, used, strict=True)
    return sum(price * device.gpu_hours for price, device in priced_devices) / hours


@dataclass(frozen=True, slots=True)
class ShardTime:
    """One shard's images and seconds, over all its attempts."""

    shard: int
    images: int
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """Images a second by shard, in the plan's order; None if a shard has no rate.

    `slow` counts the shards under 80 % of the `median`, and `slowest` has at most ten of them, the
    slowest first.
    """

    rates: tuple[float | None, ...] = ()
    median: float = 0.0
    slow: int = 0
    slowest: tuple[ShardTime, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """The use of devices; None if no shard left such a figure.

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
    slow_rate = SLOW_RATIO * median_shard.images_per_second
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
