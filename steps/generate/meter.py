"""The meter of an attempt: what its devices take is entered into the run's account as it passes.

A process that is killed leaves what it entered before. Where the budget of the run is spent, the
attempt ends after its current part.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.job.prices import find_price
from imagekiln.steps.runs.account import (
    MAX_TRIES,
    NOTHING,
    Account,
    Spent,
    open_account,
    open_run_store,
)
from imagekiln.steps.runs.parts_to_make import has_parts_to_make
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.terms import Terms, budget_error, read_terms
from imagekiln.steps.runtime.metrics import SHARD_IMAGES_DONE, SHARD_IMAGES_PLANNED
from imagekiln.steps.runtime.progress import Event, Progress, RelayedProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage.store import Store

ENTRY_SECONDS = 300.0  # between two entries
# With a budget, more often: but of many pods at once, no more than a few write in a second.
MIN_ENTRY_SECONDS = 30.0
ENTRY_SECONDS_PER_SHARD = 1.0
# The pods of a run start together: each enters its start at a random time after it.
START_SECONDS_PER_SHARD = 0.1
MAX_START_SECONDS = 30.0
# A pod that is done holds its GPU until it is entered.
MAX_CLOSING_TRIES = 8
ON_CPU = Event("cpu", {}, "No GPU here: drawing on the CPU.")  # if the job leaves it open
DEVICE_NAMES = {"cpu": "cpu", "mps": "mps"}  # of others, it is known once the model is loaded


@contextmanager
def meter_attempt(
    store: Store,
    plan: Plan,
    progress: Progress,
    stop: Stop,
    *,
    shards: Sequence[int] | None = None,
    devices: int = 1,
    age: float = 0.0,
) -> Iterator["Meter"]:
    """Meter what the block spends on so many devices, in a process that is `age` seconds old.

    `stop` is requested where the budget of the run is spent. Raises BudgetSpent where it was spent
    before, or ended the block, and parts of `shards` are missing, by default of all shards: where
    none is, there is nothing left to spend on, and the block ends well.
    """
    if shards is None:
        shards = range(len(plan.shards))
    run_store = open_run_store(store, plan)
    terms = read_terms(run_store, plan.job)
    meter = Meter(open_account(store, plan), terms, progress, stop, plan.job.device)
    excess = meter.read_excess()
    if excess is not None and has_parts_to_make(store, plan, shards):
        raise budget_error(run_store.uri, excess)
    meter.start(devices, age, len(plan.shards))
    is_complete = False
    try:
        yield meter
        is_complete = True
    except TryAgain as error:
        if meter.excess is None:
            raise
        if has_parts_to_make(store, plan, shards):
            raise budget_error(run_store.uri, meter.excess) from error
        is_complete = True
    finally:
        meter.close(is_complete)


def _entry_seconds(terms: Terms, shards: int) -> float:
    if not terms.budget.is_limited:
        return ENTRY_SECONDS
    return min(ENTRY_SECONDS, max(MIN_ENTRY_SECONDS, ENTRY_SECONDS_PER_SHARD * shards))


class Meter:
    """What one attempt has spent, and what is known of the other attempts at its run.

    `excess` says how far the budget is spent, once it is. `progress` is to be told of images in
    place of that which the meter was given.
    """

    def __init__(
        self, account: Account, terms: Terms, progress: Progress, stop: Stop, job_device: str
    ) -> None:
        """Measure nothing yet. `job_device` is what the job asks for."""
        self.excess: str | None = None
        self.progress: Progress = _MeteredProgress(progress, self)
        self._account = account
        self._terms = terms
        self._stop = stop
        self._job_device = job_device
        self._devices = 1
        self._began = 0.0
        self._loaded: float | None = None
        self._last_commit = 0.0
        self._price = find_price(terms.price_per_hour, DEVICE_NAMES.get(job_device))
        self._entered = NOTHING  # of this attempt, in the account
        self._total = NOTHING  # of the run, when it was last entered
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def read_excess(self) -> str | None:
        """How far the budget was spent before, as a clause; None where some of it is left."""
        if not self._terms.budget.is_limited:
            return None
        self._total = self._account.read()
        return self._terms.find_excess(self._total)

    def start(self, devices: int, age: float, shards: int) -> None:
        """Begin, `age` seconds ago, at a run of so many shards."""
        self._devices = devices
        self._began = time.perf_counter() - age
        self._thread = threading.Thread(target=self._enter_often, args=(shards,))
        self._thread.daemon = True
        self._thread.start()

    def note_device(self, name: str) -> None:
        """The model is loaded on this device; only the first call counts."""
        if self._loaded is None:
            self._loaded = self._elapsed()
            if (self._job_device, name) == ("auto", "cpu"):
                self.progress.show_event(ON_CPU)
        self._price = find_price(self._terms.price_per_hour, name)

    def note_draw(self) -> None:
        """Images were drawn, so the model is loaded."""
        if self._loaded is None:
            self._loaded = self._elapsed()
        self._check_budget()

    def note_commit(self) -> None:
        """A part was committed: what was spent so far was of use."""
        self._last_commit = self._elapsed()
        self._check_budget()

    def close(self, is_complete: bool) -> None:
        """Enter what is left. What an incomplete attempt did after its last part is lost."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(KilnError):  # only figures of cost are lost
            self._enter(self._measure(is_complete=is_complete, ended=1), MAX_CLOSING_TRIES)

    def _enter_often(self, shards: int) -> None:
        latest_start = min(MAX_START_SECONDS, START_SECONDS_PER_SHARD * shards)
        entry_seconds = _entry_seconds(self._terms, shards)
        is_closed = self._closed.wait(random.uniform(0, latest_start))  # noqa: S311  # no secret
        while not is_closed:
            with suppress(KilnError):  # the next entry has it too
                self._enter(self._measure())
                self._check_budget()
            is_closed = self._closed.wait(entry_seconds)

    def _enter(self, own: Spent, max_tries: int = MAX_TRIES) -> None:
        total = self._account.add(own - self._entered, max_tries)
        with self._lock:
            self._entered = own
            self._total = total

    def _measure(self, *, is_complete: bool = False, ended: int = 0) -> Spent:
        """What this attempt has spent so far. If it is complete, all of it was of use."""
        elapsed = self._elapsed()
        useful = elapsed if is_complete else min(elapsed, self._last_commit)
        seconds = elapsed * self._devices
        loaded = elapsed if self._loaded is None else self._loaded
        price = self._price
        return Spent(
            seconds=seconds,
            useful=useful * self._devices,
            loading=min(loaded, useful) * self._devices,
            cost=0.0 if price is None else seconds / 3600 * price.per_hour,
            priced=0.0 if price is None else seconds,
            attempts=1,
            ended=ended,
        )

    def _check_budget(self) -> None:
        """End after the current part where the run has spent its budget, as far as is known."""
        if self.excess is not None or not self._terms.budget.is_limited:
            return
        with self._lock:
            spent = self._total + (self._measure() - self._entered)
        self.excess = self._terms.find_excess(spent)
        if self.excess is not None:
            self._stop.request_after_part()  # first: what shows the event may fail
            event = Event("budget_spent", {}, f"The budget is spent: {self.excess}.")
            self.progress.show_event(event)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began


class _MeteredProgress(RelayedProgress):
    """Passes on what it learns, serves it as gauges, and lets the meter know of parts."""

    def __init__(self, progress: Progress, meter: Meter) -> None:
        super().__init__(progress)
        self._meter = meter

    def start(self, total: int) -> None:
        SHARD_IMAGES_PLANNED.set(total)
        SHARD_IMAGES_DONE.set(0)
        super().start(total)

    def add_existing(self, images: int) -> None:
        SHARD_IMAGES_DONE.add(images)
        super().add_existing(images)

    def add_drawn(self, images: int) -> None:
        self._meter.note_draw()
        super().add_drawn(images)

    def add_committed(self, images: int) -> None:
        SHARD_IMAGES_DONE.add(images)
        super().add_committed(images)
        self._meter.note_commit()
