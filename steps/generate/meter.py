"""Record the spending of an attempt about once a minute, and end it when the budget is spent."""

import math
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
    budget_error,
    sum_charged,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runs.shard import has_missing_parts
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.metrics import SHARD_IMAGES_DONE, SHARD_IMAGES_PLANNED
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import Stop

WRITES_PER_LOOK = 5  # writes between two reads of the other attempts' spending
DEVICE_NAMES = {"cpu": "cpu", "mps": "mps"}  # a GPU's name is known once the model is loaded


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
    """Meter the spending of the block on `devices`, in a process that is `age` seconds old.

    `plan` is the plan of the run or of a retry. `shards` defaults to all of its shards. Raises
    BudgetSpent if the budget was spent before or during the block, unless no part is missing.
    """
    numbers = range(len(plan.shards)) if shards is None else shards
    meter = Meter(run, plan, next(iter(numbers), 0), progress, stop, devices, age)

    def require_budget() -> None:
        if meter.excess and has_missing_parts(run.store, plan, numbers):
            raise budget_error(run.store.uri, meter.excess)

    meter.look_at_budget()
    require_budget()
    meter.start()
    end: AttemptEnd = "complete"
    try:
        try:
            yield meter
        except TryAgain:
            if meter.excess is None:
                raise
            require_budget()
    except BaseException:
        end = "failed" if stop.requested_at is None else "stopped"
        raise
    finally:
        meter.close(end)


class Meter:
    """A meter of one attempt's spending, which also watches the run's budget.

    `excess` is a message once the budget is spent. `progress` replaces the given one.
    """

    def __init__(
        self,
        run: Run,
        plan: Plan,
        shard: int,
        progress: Progress,
        stop: Stop,
        devices: int,
        age: float,
    ) -> None:
        """Take the run and the attempt's `age` in seconds. `shard` is the first, which names it."""
        self.excess: str | None = None
        self.progress: Progress = _MeteredProgress(progress, self)
        self._attempt = AttemptFile(run.store, plan, shard, devices)
        self._others = AttemptReader(run.store)
        self._terms = run.terms
        self._stop = stop
        self._job_device = plan.job.device
        self._devices = devices
        self._began = time.perf_counter() - age
        self._loaded: float | None = None
        self._last_commit = 0.0
        self._price = find_price(self._terms.price_per_hour, DEVICE_NAMES.get(self._job_device))
        self._spent_by_others = Spent()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_often, daemon=True)

    def start(self) -> None:
        """Write the attempt now, then about once a minute. Raises TryAgain if writing fails."""
        self._attempt.write(self._measure())
        self._thread.start()

    def look_at_budget(self) -> None:
        """Read the spending of the other attempts, if there is a budget."""
        if self._terms.budget.is_limited:
            attempts = self._others.read()
            attempts.pop(self._attempt.key, None)
            self._spent_by_others = sum_charged(attempts.values())
            self.excess = self.excess or self._terms.find_excess(self._spent_by_others)

    def note_done(self, shard: int) -> None:
        """Record that a shard is complete, so that no process helps with it."""
        with self._lock:
            self._attempt.note_done(shard)
        self._write(self._measure())

    def add_stats(self, stats: ShardStats) -> None:
        """Add the statistics of generated parts. They are written with the attempt."""
        with self._lock:
            self._attempt.add_stats(stats)

    def note_device(self, name: str) -> None:
        """Note that the model is loaded on this device. Only the first call counts."""
        if self._loaded is None and (self._job_device, name) == ("auto", "cpu"):
            self.progress.show_event("cpu", "No GPU here: drawing on the CPU.")
        self.note_draw()
        self._price = find_price(self._terms.price_per_hour, name)

    def note_draw(self) -> None:
        """Note that images were generated, so the model is loaded."""
        if self._loaded is None:
            self._loaded = self._elapsed()

    def note_commit(self) -> None:
        """Note that a part was committed, so the time spent so far was useful."""
        self._last_commit = self._elapsed()
        self._check_budget()

    def close(self, end: AttemptEnd) -> None:
        """Write how the attempt ended. An incomplete one loses the time after its last part."""
        self._closed.set()
        self._thread.join()
        if end == "complete":
            self._last_commit = math.inf
        self._write(self._measure(ended=1), end)

    def _write_often(self) -> None:
        writes = 0
        while not self._closed.wait(WRITE_SECONDS):
            writes += 1
            self._write(self._measure())
            if writes % WRITES_PER_LOOK == 0:
                with suppress(KilnError):
                    self.look_at_budget()
            self._check_budget()

    def _write(self, spent: Spent, end: AttemptEnd | None = None) -> None:
        with self._lock, suppress(KilnError):  # only figures are lost, and the next write has them
            self._attempt.write(spent, end)

    def _measure(self, ended: int = 0) -> Spent:
        """Measure this attempt so far."""
        elapsed = self._elapsed()
        useful = min(elapsed, self._last_commit)
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
        """Stop after the current part if the run has spent its budget."""
        if self._stop.requested_at is not None or not self._terms.budget.is_limited:
            return
        self.excess = self._terms.find_excess(self._spent_by_others + self._measure())
        if self.excess is not None:
            self._stop.request_after_part()  # first, since showing the event may fail
            self.progress.show_event("budget_spent", f"The budget is spent: {self.excess}.")

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began


class _MeteredProgress(Progress):
    """Progress that also updates the gauges and notifies the meter of parts."""

    def __init__(self, shown: Progress, meter: Meter) -> None:
        self._shown = shown
        self._meter = meter

    def start(self, total: int) -> None:
        SHARD_IMAGES_PLANNED.set(total)
        SHARD_IMAGES_DONE.set(0)
        self._shown.start(total)

    def add_existing(self, images: int) -> None:
        SHARD_IMAGES_DONE.add(images)
        self._shown.add_existing(images)

    def add_drawn(self, images: int) -> None:
        self._meter.note_draw()
        self._shown.add_drawn(images)

    def add_committed(self, images: int) -> None:
        SHARD_IMAGES_DONE.add(images)
        self._shown.add_committed(images)
        self._meter.note_commit()

    def show_event(self, name: str, sentence: str) -> None:
        self._shown.show_event(name, sentence)

    def close(self) -> None:
        self._shown.close()
