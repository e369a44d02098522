"""Attempts: one object for each process that works on a run, which that process alone rewrites.

It is there before anything is drawn, written again about once a minute, and says at the end how the
attempt ended. What a run has spent, which shards are late, and the times of its report are sums
over attempts. The terms of a run say what its devices cost and what it may spend.
"""

import time
import uuid
from collections.abc import Iterable, Sequence, Set
from dataclasses import astuple, dataclass, field, replace
from operator import add
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, BudgetSpent, Missing, StorageRefused
from imagekiln.steps.job.execution import BudgetSettings, PricePerHour, find_highest_price
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.keys import ATTEMPT_KEY_PATTERN, ATTEMPTS_FOLDER, attempt_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import Count, ShardStats
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.figures import format_money, format_number
from imagekiln.steps.storage.store import Store

K = TypeVar("K")
WRITE_SECONDS = 60.0  # between two writes of one attempt
# Of a sum in an entry. Rounding may leave a little less than nothing.
Amount = Annotated[float, Field(ge=-1, le=1e18)]


@dataclass(frozen=True, slots=True)
class Spent:
    """Device-seconds and money that attempts have spent.

    An attempt is one process, or one pod, at one shard or several. `useful` are the seconds of all
    that led to committed parts: those of an attempt that was cut off count up to its last part.
    Of these, `loading` passed before the first image could be drawn. `cost` is that of `priced`
    seconds. `ended` counts the attempts that said how they ended.
    """

    seconds: Amount = 0.0
    useful: Amount = 0.0
    loading: Amount = 0.0
    cost: Amount = 0.0
    priced: Amount = 0.0
    attempts: Count = 0
    ended: Count = 0

    def __add__(self, other: "Spent") -> "Spent":
        """Add both."""
        return Spent(*map(add, astuple(self), astuple(other)))

    @property
    def gpu_hours(self) -> float:
        """The device-seconds in hours."""
        return self.seconds / 3600

    @property
    def complete_cost(self) -> float | None:
        """The cost; None if some of the time has no price."""
        unpriced = self.seconds - self.priced
        rounding = 1e-6 * max(1.0, self.seconds)
        if unpriced < rounding:
            return self.cost
        return None

    def highest_cost(self, highest_price: float | None) -> float:
        """The cost, if the time without a price was on the most expensive GPU."""
        unpriced_hours = (self.seconds - self.priced) / 3600
        return self.cost + unpriced_hours * (highest_price or 0.0)


NOTHING = Spent()
AttemptEnd = Literal["complete", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process at shards of the run or of a retry: what it spent, and statistics by shard.

    `done` are the shards of which nothing is missing any more. `end` is None while it runs, and for
    ever if it was killed. `at` is the time of writing, in seconds since 1970.
    """

    spent: Spent
    at: float
    devices: Count = 1
    retry: Count = 0
    stats: tuple[ShardStats, ...] = ()
    done: tuple[Count, ...] = ()
    end: AttemptEnd | None = None

    @property
    def charged(self) -> Spent:
        """The most that it has spent: a killed one may have run until it was to be written again.

        So an attempt that is killed again and again before it writes is not free.
        """
        if self.end is not None:
            return self.spent
        unwritten = WRITE_SECONDS * self.devices
        return replace(self.spent, seconds=self.spent.seconds + unwritten)


ATTEMPT_TYPE_ADAPTER: TypeAdapter[Attempt] = TypeAdapter(Attempt)


class AttemptFile:
    """The object of the attempt that this process makes, at a shard of a plan."""

    def __init__(self, store: Store, plan: Plan, shard: int, devices: int = 1) -> None:
        """Name the object of a process with so many devices; nothing is written yet."""
        self.key = attempt_key(shard, uuid.uuid4().hex, plan.retry)
        self._store = store
        self._retry = plan.retry
        self._devices = devices
        self._stats: dict[int, ShardStats] = {}
        self._done: list[int] = []

    def note_done(self, shard: int) -> None:
        """Remember that nothing of a shard is missing any more."""
        self._done.append(shard)

    def add_stats(self, stats: ShardStats) -> None:
        """Add the statistics of parts that were made, to those of the same shard."""
        _add_stats(self._stats, stats.shard, stats)

    def write(self, spent: Spent, end: AttemptEnd | None = None) -> None:
        """Write the attempt in place of what was written before. Raises TryAgain."""
        attempt = Attempt(
            spent,
            time.time(),
            devices=self._devices,
            retry=self._retry,
            stats=tuple(self._stats.values()),
            done=tuple(self._done),
            end=end,
        )
        content = ATTEMPT_TYPE_ADAPTER.dump_json(attempt, indent=1) + b"\n"
        self._store.replace(self.key, content)


class AttemptReader:
    """The attempts at a run. Those that have ended are read once."""

    def __init__(self, store: Store) -> None:
        """Read nothing yet."""
        self._store = store
        self._ended: dict[str, Attempt] = {}

    def read(self, keys: Iterable[str] | None = None) -> dict[str, Attempt]:
        """All attempts by key, or these; without damaged ones, of which only figures are lost.

        Raises TryAgain.
        """
        keys = list(list_attempts(self._store) if keys is None else keys)
        read = map_ordered(lambda index: self._read(keys[index]), len(keys))
        attempts: dict[str, Attempt] = {}
        for key, attempt in zip(keys, read, strict=True):
            if attempt is None:
                continue
            attempts[key] = attempt
            if attempt.end is not None:
                self._ended[key] = attempt
        return attempts

    def _read(self, key: str) -> Attempt | None:
        if key in self._ended:
            return self._ended[key]
        try:
            return ATTEMPT_TYPE_ADAPTER.validate_json(self._store.read(key))
        except StorageRefused:
            raise
        except (BadInput, Missing, ValidationError):
            return None


def list_attempts(store: Store) -> dict[str, tuple[int, int]]:
    """The keys of all attempts, with the retry and the first shard of each. Raises TryAgain."""
    attempts = {}
    for entry in store.list_folder(ATTEMPTS_FOLDER):
        match = ATTEMPT_KEY_PATTERN.fullmatch(entry.key)
        if match is not None:
            attempts[entry.key] = (int(match[1] or 0), int(match[2]))
    return attempts


def read_begun(store: Store, plan: Plan, shards: Set[int]) -> dict[int, bool]:
    """For each of these shards of a plan that an attempt has begun, whether nothing is missing."""
    begun = {
        key: shard
        for key, (retry, shard) in list_attempts(store).items()
        if retry == plan.retry and shard in shards
    }
    attempts = AttemptReader(store).read(begun)
    done = {shard for attempt in attempts.values() for shard in attempt.done}
    return {shard: shard in done for shard in begun.values()}


def read_attempts(store: Store) -> list[Attempt]:
    """All attempts at the run in `store`. Raises TryAgain."""
    return list(AttemptReader(store).read().values())


def sum_spent(attempts: Iterable[Attempt]) -> Spent:
    """Add up what attempts have recorded."""
    return sum((attempt.spent for attempt in attempts), NOTHING)


def sum_charged(attempts: Iterable[Attempt]) -> Spent:
    """The most that attempts have spent, by which a budget is compared."""
    return sum((attempt.charged for attempt in attempts), NOTHING)


def merge_stats(attempts: Sequence[Attempt]) -> list[ShardStats]:
    """The statistics of each shard over all attempts, those of the run before those of retries."""
    merged: dict[tuple[int, int], ShardStats] = {}
    in_order = sorted(attempts, key=lambda attempt: attempt.at)
    for attempt in in_order:
        for stats in attempt.stats:
            _add_stats(merged, (attempt.retry, stats.shard), stats)
    shards = sorted(merged)
    return [merged[shard] for shard in shards]


def _add_stats(merged: dict[K, ShardStats], key: K, stats: ShardStats) -> None:
    earlier = merged.get(key)
    merged[key] = stats if earlier is None else earlier + stats


@dataclass(frozen=True, slots=True)
class Terms:
    """The prices and the budget of a run, and the share of its images that may fail.

    They are those of the latest submission, or prices given to `aggregate` after it. A commit has
    them and not the plan, so that a price can be corrected, and a budget or the accepted share of
    failures raised. Without that share, it is the one in the plan.
    """

    price_per_hour: PricePerHour | None = None
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    failed_share: float | None = None

    def find_excess(self, spent: Spent) -> str | None:
        """A clause about a spent budget; None if some of it is left."""
        highest = find_highest_price(self.price_per_hour)
        cost = spent.highest_cost(None if highest is None else highest.per_hour)
        return self.find_estimated_excess(spent.gpu_hours, cost)

    def find_estimated_excess(self, gpu_hours: float, cost: float | None) -> str | None:
        """Describe by how much an estimate exceeds the budget; None if it does not."""
        limit = self.budget.gpu_hours
        if limit is not None and gpu_hours > limit:
            hours = format_number(gpu_hours)
            return f"{hours} GPU-hours, where budget.gpu_hours is {format_number(limit)}"
        limit = self.budget.cost
        if limit is not None and (cost or 0.0) > limit:
            return f"cost {format_money(cost or 0.0)}, where budget.cost is {format_money(limit)}"
        return None


def terms_of(job: Job) -> Terms:
    """The terms of a job."""
    return Terms(job.price_per_hour, job.budget, job.limits.failed_share)


def budget_error(uri: str, excess: str) -> BudgetSpent:
    """The error for a run without budget left."""
    return BudgetSpent(
        f"{uri}: the budget is spent: {excess}. Everything committed is kept. To resume, raise "
        "`budget` in the job, or by --set, and run or submit it again."
    )
