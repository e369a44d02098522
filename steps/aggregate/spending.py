"""What a run cost, and what for: device-seconds and money by use, with what was wasted."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from imagekiln.steps.job.prices import PricePerHour, find_price
from imagekiln.steps.runs.account import Spent
from imagekiln.steps.runs.stats import (
    ShardStats,
    StageSeconds,
    mean_busy_share,
)

SECONDS_PER_HOUR = 3600


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

    def priced(self, per_hour: float) -> "UseAmounts":
        """The money for these device-seconds."""
        factor = per_hour / SECONDS_PER_HOUR
        return UseAmounts(
            drawing=self.drawing * factor,
            loading=self.loading * factor,
            idle=self.idle * factor,
            repeated=self.repeated * factor,
            total=self.total * factor,
        )


@dataclass(frozen=True, slots=True)
class DevicePrice:
    """The price of a kind of device for an hour, where it is from, and how long it was used.

    `per_hour` is None where the price table has none.
    """

    device: str
    gpu_hours: float
    per_hour: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Spending:
    """What a run and its rounds took, over all attempts.

    `cost` is in the currency of the prices; None where a device has no price. Of the time for
    drawing, `not_ok_seconds` went into images that are not ok: blank, filtered, failed, or made
    again by a later round. `attempts` are processes and pods, of which `lost_attempts` never said
    how they ended: what they did after their last entry in the account is not counted.
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

    @property
    def not_ok_cost(self) -> float | None:
        """The money for images that are not ok; None without prices."""
        price = self.price_per_hour
        return None if price is None else self.not_ok_seconds / SECONDS_PER_HOUR * price


def summarize_spending(
    stats: Sequence[ShardStats], spent: Spent, prices: PricePerHour | None, *, drawn: int, ok: int
) -> Spending:
    """What was spent, by the account of the run and the statistics of its shards.

    `drawn` images were made, of which `ok` are of use.
    """
    gpu_seconds = _seconds_by_use(stats, spent)
    used = _device_prices(stats, spent, prices)
    return Spending(
        gpu_seconds=gpu_seconds,
        cost=_price_uses(gpu_seconds, used),
        not_ok_seconds=gpu_seconds.drawing * _share_not_ok(drawn, ok),
        attempts=spent.attempts,
        lost_attempts=max(0, spent.attempts - spent.ended),
        prices=used,
    )


def _seconds_by_use(stats: Sequence[ShardStats], spent: Spent) -> UseAmounts:
    """The account's seconds, divided as those of the shards are."""
    seconds = sum((shard.seconds for shard in stats), StageSeconds())
    working = max(0.0, seconds.total - seconds.load)
    total = max(spent.seconds, seconds.total)
    dropped = max(0.0, spent.seconds - spent.useful)
    # Shards also count what attempts loaded that ended before their first part: it is dropped.
    loading = max(min(spent.loading, spent.useful), seconds.load - dropped)
    useful = max(0.0, total - dropped - loading)

    # What no shard's statistics have is idle where all processes ended well: several share a pod,
    # and wait for the last of them. Else it is the work of those that left no statistics.
    unexplained = max(0.0, useful - working)
    is_idle = spent.attempts == spent.ended and working > 0
    idle_end = unexplained if is_idle else 0.0
    rest = useful - idle_end

    shares = _working_shares(stats, seconds)
    repeated = rest * _repeated_share(stats)
    rest -= repeated
    return UseAmounts(
        drawing=rest * shares.drawing,
        loading=loading + rest * shares.compiling,
        idle=idle_end + rest * shares.idle,
        repeated=dropped + repeated,
        total=total,
    )


@dataclass(frozen=True, slots=True)
class _Shares:
    """Shares of the time after loading."""

    drawing: float
    compiling: float
    idle: float


def _working_shares(stats: Sequence[ShardStats], seconds: StageSeconds) -> _Shares:
    working = seconds.total - seconds.load
    if working <= 0:
        return _Shares(1.0, 0.0, 0.0)
    compiling = min(1.0, seconds.compile / working)
    computed = seconds.text + seconds.denoise + seconds.decode
    computed += sum(seconds.passes.values())
    drawing = computed / working
    busy = mean_busy_share(stats)
    if busy is not None:  # texts may be encoded during a batch, and are then counted twice
        drawing = min(drawing, busy)
    drawing = min(drawing, 1.0 - compiling)
    return _Shares(drawing, compiling, 1.0 - compiling - drawing)


def _repeated_share(stats: Sequence[ShardStats]) -> float:
    """The share of images that were drawn and dropped, since another process was first."""
    repeated = sum(shard.repeated_images for shard in stats)
    drawn = repeated + sum(shard.images for shard in stats)
    return repeated / drawn if drawn else 0.0


def _share_not_ok(drawn: int, ok: int) -> float:
    return max(0.0, 1.0 - ok / drawn) if drawn else 0.0


def _device_prices(
    stats: Sequence[ShardStats], spent: Spent, prices: PricePerHour | None
) -> tuple[DevicePrice, ...]:
    """The price of each kind of device; of unknown ones where no shard left statistics."""
    hours: dict[str, float] = defaultdict(float)
    for shard in stats:
        hours[shard.device] += shard.seconds.total / SECONDS_PER_HOUR
    if not hours and spent.seconds:
        hours[""] = spent.gpu_hours

    used = []
    for device, gpu_hours in sorted(hours.items()):
        price = find_price(prices, device or None)
        used.append(
            DevicePrice(
                device=device,
                gpu_hours=gpu_hours,
                per_hour=None if price is None else price.per_hour,
                source="" if price is None else price.source,
            )
        )
    return tuple(used)


def _price_uses(gpu_seconds: UseAmounts, used: Sequence[DevicePrice]) -> UseAmounts | None:
    """The money by use, at the mean price; None where a kind of device has none."""
    if not used:
        return None
    weighted = 0.0
    for device in used:
        if device.per_hour is None:
            return None
        weighted += device.per_hour * device.gpu_hours
    hours = sum(device.gpu_hours for device in used)
    mean = weighted / hours if hours else used[0].per_hour or 0.0
    return gpu_seconds.priced(mean)
