"""The account of a run: what its attempts have spent so far, in entries that are only appended.

Each entry holds the sum of all before it, so that the last one says all, and a process that appends
adds its own to it. Entries are created once, under the first number that is free: of two processes
that append at once, the second reads the entry of the first and takes the next number.
"""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.runs.keys import account_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

MAX_TRIES = 40
FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 5.0
# Of a sum in an entry. Rounding may leave a little less than nothing.
Amount = Annotated[float, Field(ge=-1, le=1e18)]
Count = Annotated[int, Field(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class Spent:
    """What attempts have spent, in device-seconds and in money.

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
        """What both have spent."""
        sums = []
        for mine, theirs in zip(astuple(self), astuple(other), strict=True):
            sums.append(mine + theirs)
        return Spent(*sums)

    def __sub__(self, other: "Spent") -> "Spent":
        """What this one has spent beyond the other."""
        differences = []
        for mine, theirs in zip(astuple(self), astuple(other), strict=True):
            differences.append(mine - theirs)
        return Spent(*differences)

    @property
    def gpu_hours(self) -> float:
        """The device-seconds in hours."""
        return self.seconds / 3600

    @property
    def complete_cost(self) -> float | None:
        """The cost; None where some of the time has no price."""
        unpriced = self.seconds - self.priced
        rounding = 1e-6 * max(1.0, self.seconds)
        if unpriced < rounding:
            return self.cost
        return None

    def highest_cost(self, highest_price: float | None) -> float:
        """The cost, where the time without a price is that of the most expensive GPU."""
        unpriced_hours = (self.seconds - self.priced) / 3600
        return self.cost + unpriced_hours * (highest_price or 0.0)


NOTHING = Spent()


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """The sum of all that was spent up to a time, in seconds since 1970, and who wrote it."""

    writer: str
    at: float
    spent: Spent


ENTRY_TYPE_ADAPTER: TypeAdapter[AccountEntry] = TypeAdapter(AccountEntry)


class Account:
    """The account of one run. To read it takes a few requests, however many entries there are."""

    def __init__(self, store: Store) -> None:
        """Take the account of the run in `store`, and read nothing yet."""
        self._store = store
        self._entries = 0
        self._spent = NOTHING

    def read(self) -> Spent:
        """What the run has spent. Raises TryAgain where storage fails, BadInput on damage."""
        entries = count_entries(self._store, account_key, self._entries)
        if entries > self._entries:
            self._spent = self._read_entry(entries - 1).spent
            self._entries = entries  # once its sum is known: reading it may fail
        return self._spent

    def add(self, spent: Spent, max_tries: int = MAX_TRIES) -> Spent:
        """Append what was spent, and return the sum. Raises as `read` does."""
        writer = uuid.uuid4().hex
        for attempt in range(max_tries):
            total = self.read() + spent
            number = self._entries
            entry = AccountEntry(writer, time.time(), total)
            content = ENTRY_TYPE_ADAPTER.dump_json(entry) + b"\n"
            is_written = self._store.create(account_key(number), content)
            # Where an answer was lost, a second request meets the entry of the first.
            if is_written or self._read_entry(number).writer == writer:
                self._entries = number + 1
                self._spent = total
                return total
            time.sleep(_pause(attempt))
        raise TryAgain(f"{self._store.uri}: too many processes write to its account at once.")

    def _read_entry(self, number: int) -> AccountEntry:
        key = account_key(number)
        try:
            return ENTRY_TYPE_ADAPTER.validate_json(self._store.read(key))
        except ValidationError as error:
            raise BadInput(
                f"{self._store.uri_of(key)}: is damaged. Delete it and the entries after it: "
                "only figures of cost are lost."
            ) from error


def count_entries(store: Store, key_of: Callable[[int], str], known: int = 0) -> int:
    """How many entries with consecutive numbers there are, at least those that are known.

    First looks for a free number in growing steps, then for the first one by halves.
    """
    low = known
    step = 1
    while store.exists(key_of(low + step - 1)):
        low += step
        step *= 2
    high = low + step - 1
    while low < high:
        middle = (low + high) // 2
        if store.exists(key_of(middle)):
            low = middle + 1
        else:
            high = middle
    return low


def open_account(store: Store, plan: Plan) -> Account:
    """The account of a run, which the rounds within it share."""
    return Account(open_run_store(store, plan))


def open_run_store(store: Store, plan: Plan) -> Store:
    """The folder of the run itself, also where `store` is that of one of its rounds."""
    if plan.round == 0:
        return store
    parent, _, _ = store.uri.rstrip("/").rpartition("/")
    return open_store(parent or ".")


def _pause(attempt: int) -> float:
    longest = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt)
    return random.uniform(0, longest)  # noqa: S311  # no secret
