"""What a run cost, and what for: device-seconds and money by use, with what was wasted."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from imagekiln.steps.job.execution import PricePerHour, find_price
from imagekiln.steps.runs.attempts import Spent
from imagekiln.steps.runs.stats import ShardStats, StageSeconds, mean_busy_share

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
    """What a run and its retries took, over all attempts.

    `cost` is in the currency of the prices; None where a device has no price. Of the time for
    drawing, `not_ok_seconds` went into images that are not ok: blank, filtered, failed, or made
    again by a later retry. `attempts` are processes and pods, of which `lost_attempts` never said
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
    """What was spent, by the attempts at the run and the statistics of its shards.

    `drawn` images were made, of which `ok` are of use.
    """
    gpu_seconds = _seconds_by_use(stats, spent)
    used = _device_prices(stats, spent, prices)
    mean_price = _mean_price(used)
    cost = None
    if mean_price is not None:
        per_second = mean_price / SECONDS_PER_HOUR
        cost = UseAmounts(*(seconds * per_second for seconds in astuple(gpu_seconds)))
    share_not_ok = 0.0
    if drawn:
        share_not_ok = max(0.0, 1.0 - ok / drawn)
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

    # If all processes ended well, what no shard's statistics have is idle: several share a pod, and
    # wait for the last of them. Else it is the work of those that left no statistics.
    idle_end = 0.0
    all_ended = spent.attempts == spent.ended
    if all_ended and working > 0:
        idle_end = max(0.0, useful - working)
    rest = useful - idle_end

    # Images that were drawn and dropped, since another process was first.
    dropped_images = 0
    drawn_images = 0
    for shard in stats:
        dropped_images += shard.repeated_images
        drawn_images += shard.images + shard.repeated_images
    repeated = rest * dropped_images / max(1, drawn_images)
    rest -= repeated

    drawing, compiling = _working_shares(stats, seconds)
    waiting = 1.0 - drawing - compiling
    return UseAmounts(
        drawing=rest * drawing,
        loading=loading + rest * compiling,
        idle=idle_end + rest * waiting,
        repeated=dropped + repeated,
        total=total,
    )


def _working_shares(stats: Sequence[ShardStats], seconds: StageSeconds) -> tuple[float, float]:
    """The shares of drawing and compiling in the time after loading."""
    working = seconds.total - seconds.load
    if working <= 0:
        return 1.0, 0.0
    compiling = min(1.0, seconds.compile / working)
    computed = seconds.text + seconds.denoise + seconds.decode
    computed += sum(seconds.passes.values())
    busy = mean_busy_share(stats)
    if busy is None:
        busy = 1.0
    # Texts may be encoded during a batch, and are then counted twice.
    drawing = min(
        computed / working,
        busy,
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
        if price is None:
            used.append(DevicePrice(device, gpu_hours, None, ""))
        else:
            used.append(DevicePrice(device, gpu_hours, price.per_hour, price.source))
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
    paid = sum(price * device.gpu_hours for price, device in priced_devices)
    return paid / hours
