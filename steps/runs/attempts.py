"""Attempts: one object for each process that works on a run, rewritten only by that process.

The object is created before the first image is generated and rewritten about once a minute. Its
last version says how the attempt ended. A run's cost, its late shards and the times in its report
are computed from its attempts. The terms of a run hold device prices and the budget.
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
# Rounding error of a sum in an entry, which may leave a little less than zero.
Amount = Annotated[float, Field(ge=-1, le=1e18)]


@dataclass(frozen=True, slots=True)
class Spent:
    """Device-seconds and cost recorded by attempts.

    An attempt is one process, or one pod, that works on one or more shards. `useful` counts the
    seconds that led to committed parts, for an interrupted attempt up to its last part. It includes
    `loading`, the seconds before the first image could be generated. `cost` covers the `priced`
    seconds. `ended` counts the attempts that recorded how they ended.
    """

    seconds: Amount = 0.0
    useful: Amount = 0.0
    loading: Amount = 0.0
    cost: Amount = 0.0
    priced: Amount = 0.0
    attempts: Count = 0
    ended: Count = 0

    def __add__(self, other: "Spent") -> "Spent":
        """Add two amounts."""
        return Spent(*map(add, astuple(self), astuple(other)))

    @property
    def gpu_hours(self) -> float:
        """Device-seconds in hours."""
        return self.seconds / 3600

    @property
    def complete_cost(self) -> float | None:
        """Cost of all device time; None if some of it has no price."""
        unpriced = self.seconds - self.priced
        rounding = 1e-6 * max(1.0, self.seconds)
        if unpriced < rounding:
            return self.cost
        return None

    def highest_cost(self, highest_price: float | None) -> float:
        """Return the cost if all unpriced time was on the most expensive GPU."""
        unpriced_hours = (self.seconds - self.priced) / 3600
        return self.cost + unpriced_hours * (highest_price or 0.0)


NOTHING = Spent()
AttemptEnd = Literal["complete", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process at shards of a run or of a retry: its cost, and statistics by shard.

    `done` lists the shards with no part missing. `end` is None while the process runs, and stays
    None if it was killed. `at` is the time of writing, in seconds since 1970.
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
        """Return an upper bound: a killed attempt may have run until its next write was due.

        An attempt that is killed repeatedly before it writes is therefore charged as well.
        """
        if self.end is not None:
            return self.spent
        unwritten = WRITE_SECONDS * self.devices
        return replace(self.spent, seconds=self.spent.seconds + unwritten)


ATTEMPT_TYPE_ADAPTER: TypeAdapter[Attempt] = TypeAdapter(Attempt)


class AttemptFile:
    """Writer of this process's attempt at a shard of a plan."""

    def __init__(self, store: Store, plan: Plan, shard: int, devices: int = 1) -> None:
        """Name the attempt of a process with this number of devices, without writing it."""
        self.key = attempt_key(shard, uuid.uuid4().hex, plan.retry)
        self._store = store
        self._retry = plan.retry
        self._devices = devices
        self._stats: dict[int, ShardStats] = {}
        self._done: list[int] = []

    def note_done(self, shard: int) -> None:
        """Record that no part of a shard is missing."""
        self._done.append(shard)

    def add_stats(self, stats: ShardStats) -> None:
        """Add the statistics of new parts to the statistics of their shard."""
        _add_stats(self._stats, stats.shard, stats)

    def write(self, spent: Spent, end: AttemptEnd | None = None) -> None:
        """Write the attempt, replacing its earlier version. Raises TryAgain."""
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
    """Reader of a run's attempts, which reads each attempt that has ended only once."""

    def __init__(self, store: Store) -> None:
        """Take the store of a run, without reading it."""
        self._store = store
        self._ended: dict[str, Attempt] = {}

    def read(self, keys: Iterable[str] | None = None) -> dict[str, Attempt]:
        """Read these attempts, or all, by key.

        Damaged ones, which lose only statistics, are skipped. Raises TryAgain.
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
    """List the keys of all attempts, each with its retry and first shard. Raises TryAgain."""
    attempts = {}
    for entry in store.list_folder(ATTEMPTS_FOLDER):
        match = ATTEMPT_KEY_PATTERN.fullmatch(entry.key)
        if match is not None:
            attempts[entry.key] = (int(match[1] or 0), int(match[2]))
    return attempts


def read_begun(store: Store, plan: Plan, shards: Set[int]) -> dict[int, bool]:
    """Map these shards, if an attempt has begun them, to whether they are complete."""
    begun = {
        key: shard
        for key, (retry, shard) in list_attempts(store).items()
        if retry == plan.retry and shard in shards
    }
    attempts = AttemptReader(store).read(begun)
    done = {shard for attempt in attempts.values() for shard in attempt.done}
    return {shard: shard in done for shard in begun.values()}


def read_attempts(store: Store) -> list[Attempt]:
    """Read all attempts at the run in `store`. Raises TryAgain."""
    return list(AttemptReader(store).read().values())


def sum_spent(attempts: Iterable[Attempt]) -> Spent:
    """Add up the recorded cost of attempts."""
    return sum((attempt.spent for attempt in attempts), NOTHING)


def sum_charged(attempts: Iterable[Attempt]) -> Spent:
    """Add up the upper bounds of attempts, which are compared with the budget."""
    return sum((attempt.charged for attempt in attempts), NOTHING)


def merge_stats(attempts: Sequence[Attempt]) -> list[ShardStats]:
    """Merge the statistics of each shard, the run's attempts before those of its retries."""
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
    """Prices and budget of a run, and the accepted share of failed images.

    They come from the latest submission, or from prices given to `aggregate` after it. They are
    stored in commits, not in the plan, so that prices, the budget and the accepted share can
    change. If the share is not set, the plan's applies.
    """

    price_per_hour: PricePerHour | None = None
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    failed_share: float | None = None

    def find_excess(self, spent: Spent) -> str | None:
        """Describe a spent budget; None if some of it is left."""
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
    """Return the terms of a job."""
    return Terms(job.price_per_hour, job.budget, job.limits.failed_share)


def budget_error(uri: str, excess: str) -> BudgetSpent:
    """Build the error for a run without budget left."""
    return BudgetSpent(
        f"{uri}: the budget is spent: {excess}. Everything committed is kept. To resume, raise "
        "`budget` in the job, or by --set, and run or submit it again."
    )
