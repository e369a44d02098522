"""Write about once a minute what an attempt spends, and end it when the budget is spent."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.job.execution import find_price
from imagekiln.steps.runs.attempts import (
    WRITE_SECONDS,
    AttemptEnd,
    AttemptFile,
    AttemptReader,
    Spent,
    Terms,
    budget_error,
    sum_charged,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runs.shard import has_missing_parts
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.metrics import SHARD_IMAGES_DONE, SHARD_IMAGES_PLANNED
from imagekiln.steps.runtime.progress import Event, Progress
from imagekiln.steps.runtime.signals import Stop

WRITES_PER_LOOK = 5  # between two looks at what others have spent
ON_CPU = Event("cpu", {}, "No GPU here: drawing on the CPU.")  # if the job leaves it open
DEVICE_NAMES = {"cpu": "cpu", "mps": "mps"}  # of others, it is known once the model is loaded


@contextmanager
def meter_attempt(
    run: Run,
    plan: Plan,
    progress: Progress,
    stop: Stop,
    *,
    shards: Sequence[int] | None = None,
    devices: int = 1,
    age: float = 0.0,
) -> Iterator["Meter"]:
    """Meter what the block spends on so many devices, in a process that is `age` seconds old.

    `plan` is that of the run or of a retry; by default it makes all `shards`. Raises BudgetSpent if
    the budget was spent before or during the block, unless no part is missing.
    """
    if shards is None:
        shards = range(len(plan.shards))
    attempt = AttemptFile(run.store, plan, next(iter(shards), 0), devices)
    meter = Meter(attempt, AttemptReader(run.store), run.terms, progress, stop, plan.job.device)
    excess = meter.look_at_budget()
    if excess is not None and has_missing_parts(run.store, plan, shards):
        raise budget_error(run.store.uri, excess)
    meter.start(devices, age)
    end: AttemptEnd | None = None
    try:
        yield meter
        end = "complete"
    except TryAgain as error:
        if meter.excess is None:
            raise
        if has_missing_parts(run.store, plan, shards):
            raise budget_error(run.store.uri, meter.excess) from error
        end = "complete"
    finally:
        meter.close(end or ("failed" if stop.requested_at is None else "stopped"))


class Meter:
    """The spending of one attempt, beside that of the other attempts at its run.

    `excess` says how far the budget is spent, once it is. `progress` replaces the given one.
    """

    def __init__(
        self,
        attempt: AttemptFile,
        others: AttemptReader,
        terms: Terms,
        progress: Progress,
        stop: Stop,
        job_device: str,
    ) -> None:
        """Measure nothing yet. `job_device` is what the job asks for."""
        self.excess: str | None = None
        self.progress: Progress = _MeteredProgress(progress, self)
        self._attempt = attempt
        self._others = others
        self._terms = terms
        self._stop = stop
        self._job_device = job_device
        self._devices = 1
        self._began = 0.0
        self._loaded: float | None = None
        self._last_commit = 0.0
        self._price = find_price(terms.price_per_hour, DEVICE_NAMES.get(job_device))
        self._spent_by_others = Spent()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def look_at_budget(self) -> str | None:
        """Say how far others have spent the budget, as a clause; None if some of it is left."""
        if not self._terms.budget.is_limited:
            return None
        attempts = self._others.read()
        attempts.pop(self._attempt.key, None)
        self._spent_by_others = sum_charged(attempts.values())
        return self._terms.find_excess(self._spent_by_others)

    def start(self, devices: int, age: float) -> None:
        """Begin, `age` seconds ago. Raises TryAgain if the attempt cannot be written."""
        self._devices = devices
        self._began = time.perf_counter() - age
        self._attempt.write(self._measure())
        self._thread = threading.Thread(target=self._write_often)
        self._thread.daemon = True
        self._thread.start()

    def note_done(self, shard: int) -> None:
        """Write that nothing of a shard is missing any more: no process needs to help with it."""
        with self._lock:
            self._attempt.note_done(shard)
        with suppress(KilnError):
            self._write(self._measure())

    def add_stats(self, stats: ShardStats) -> None:
        """Add the statistics of parts that were made; they are written with the attempt."""
        with self._lock:
            self._attempt.add_stats(stats)

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

    def close(self, end: AttemptEnd) -> None:
        """Write how the attempt ended. What an incomplete one did after its last part is lost."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(KilnError):  # only figures are lost
            self._write(self._measure(is_complete=end == "complete", ended=1), end)

    def _write_often(self) -> None:
        writes = 0
        while not self._closed.wait(WRITE_SECONDS):
            writes += 1
            with suppress(KilnError):  # the next one has it too
                self._write(self._measure())
                if writes % WRITES_PER_LOOK == 0:
                    self.look_at_budget()
                self._check_budget()

    def _write(self, spent: Spent, end: AttemptEnd | None = None) -> None:
        with self._lock:
            self._attempt.write(spent, end)

    def _measure(self, *, is_complete: bool = False, ended: int = 0) -> Spent:
        """Measure this attempt so far. If it is complete, all of it was of use."""
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
        """End after the current part if the run has spent its budget, as far as is known."""
        if self.excess is not None or not self._terms.budget.is_limited:
            return
        self.excess = self._terms.find_excess(self._spent_by_others + self._measure())
        if self.excess is not None:
            self._stop.request_after_part()  # first: what shows the event may fail
            event = Event("budget_spent", {}, f"The budget is spent: {self.excess}.")
            self.progress.show_event(event)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began


class _MeteredProgress(Progress):
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
