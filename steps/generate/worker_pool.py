"""Several worker processes, each with a GPU of its own or a share of the CPU, make one run.

A thread for each gives it the next unit of work when it has finished one. If a worker is lost,
another makes what is missing of its unit, and a new one takes its place unless it never got to
draw.

`ProcessPoolExecutor` would not do: it ends all processes with one that is killed, gives none an
environment of its own nor a signal, lets them outlive a parent that is killed, and runs a user's
script again that calls us without a guard.
"""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from signal import SIGKILL, SIGTERM, Signals

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.generate.meter import Meter, meter_attempt
from imagekiln.steps.generate.metrics_server import forget_worker
from imagekiln.steps.generate.work_queue import WorkQueue, WorkUnit, split_work
from imagekiln.steps.generate.worker import END_AFTER_PART_SIGNAL, Images
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import Run, address_of
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.machine import VISIBLE_DEVICES_VARIABLE
from imagekiln.steps.runtime.progress import Event, Progress
from imagekiln.steps.runtime.signals import GRACE_SECONDS, Stop

POLL_SECONDS = 0.2
END_SECONDS = GRACE_SECONDS + 5.0  # that a worker has to end in, once it was asked to
# With the path of this process, as multiprocessing does it: checks of the user's are found alike.
WORKER_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from imagekiln.steps.generate.worker import main; main({descriptor})"
)


def make_shards(
    run: Run,
    plan: Plan,
    shards: Sequence[int],
    environments: Sequence[Mapping[str, str]],
    progress: Progress,
    stop: Stop,
) -> None:
    """Make what is missing of the shards with a worker process for each environment.

    An environment has what differs from that of this process. Raises BadInput if the workers
    cannot make the run, TryAgain if it was stopped, or so many workers were lost that images are
    missing.
    """
    devices = len(environments)
    with (
        stop.deferred(),
        meter_attempt(run, plan, progress, stop, shards=shards, devices=devices) as meter,
    ):
        meter.progress.start(sum(plan.shards[shard].images for shard in shards))
        queue = WorkQueue(split_work(plan, shards, devices))
        _WorkerPool(address_of(run.store.uri, plan), queue, meter).make_all(environments, stop)


@dataclass(slots=True)
class _Worker:
    """A process, and what is known of it. Of the images that it drew, some are `uncommitted`."""

    name: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]
    connection: Connection
    uncommitted: int = 0
    has_drawn: bool = False
    failure: TryAgain | None = None

    def send(self, message: object) -> None:
        """Send a message, unless the process has ended, as the end of its own will say."""
        with suppress(OSError):
            self.connection.send(message)

    def messages(self) -> Iterator[object]:
        """What it sends, until it has ended. A child of it may keep the connection open."""
        with suppress(EOFError, OSError):
            while True:
                has_ended = self.process.poll() is not None
                if self.connection.poll(POLL_SECONDS):
                    yield self.connection.recv()
                elif has_ended:
                    return

    def signal(self, number: Signals) -> None:
        """Signal the process; SIGKILL also what it has started, which would outlive it."""
        with suppress(ProcessLookupError):
            if number == SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def end(self) -> str:
        """Let the process end by itself, for as long as it may take; why it ended, as a sentence.

        With its connection closed, it knows that no more is wanted.
        """
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.signal(SIGKILL)
        code = self.process.wait()
        forget_worker(self.environment, self.process.pid)
        if self.failure is not None:
            return str(self.failure)
        if code == -SIGKILL:
            return f"{self.name} was killed, perhaps because memory ran out."
        if code < 0:
            return f"{self.name} was ended by {Signals(-code).name}."
        return f"{self.name} ended with exit code {code}."


class _WorkerPool:
    """The workers, what they are given, and what becomes of what they report."""

    def __init__(self, address: str, queue: WorkQueue, meter: Meter) -> None:
        self._address = address
        self._queue = queue
        self._meter = meter
        self._progress = meter.progress
        self._lock = threading.Lock()  # of all that follows, and of what workers are sent
        self._workers: list[_Worker] = []
        self._last_signal: Signals | None = None
        self._shards_with_stats: set[int] = set()
        self._committed: Counter[WorkUnit] = Counter()
        self._shown_events: set[str] = set()
        self._last_reason = ""

    def make_all(self, environments: Sequence[Mapping[str, str]], stop: Stop) -> None:
        """Make all units. If one worker fails, the others may commit the part that they are at."""
        with ThreadPoolExecutor(len(environments), "worker") as threads:
            numbers = range(1, len(environments) + 1)
            futures = list(map(threads.submit, repeat(self._use_device), numbers, environments))
            try:
                while not self._have_ended(futures):
                    if stop.requested_at is not None:
                        self._pass_on_stop(stop, stop.requested_at)
            finally:
                if self._last_signal != SIGTERM:
                    self._signal_all(SIGTERM)
                    wait(futures, END_SECONDS)
                self._signal_all(SIGKILL)
        if self._queue.is_complete:
            return
        reason = f"images are missing, because workers were lost ({self._last_reason.rstrip('.')})"
        if stop.requested_at is not None:
            reason = "was stopped"
        raise TryAgain(f"{self._address}: {reason}. Run the same command again to resume.")

    def _have_ended(self, futures: list[Future[None]]) -> bool:
        """Wait a moment for the end of all. Raises the failure of any worker that ends all."""
        ended, running = wait(futures, POLL_SECONDS, FIRST_EXCEPTION)
        for future in ended:
            future.result()
        return not running

    def _pass_on_stop(self, stop: Stop, requested_at: float) -> None:
        """Ask the workers to end as this process was asked, and end them after their time."""
        if stop.waits_for_part:
            self._signal_all(END_AFTER_PART_SIGNAL)
        elif time.monotonic() < requested_at + END_SECONDS:
            self._signal_all(SIGTERM)
        else:
            self._signal_all(SIGKILL)

    def _signal_all(self, number: Signals) -> None:
        """Let all workers end, by a signal that each gets once."""
        self._queue.close()
        with self._lock:
            if number == self._last_signal:
                return
            self._last_signal = number
            for worker in self._workers:
                worker.signal(number)

    def _use_device(self, number: int, environment: Mapping[str, str]) -> None:
        """Make units in one process after another, until nothing is left, or one could not draw."""
        can_draw = True
        while can_draw and (unit := self._queue.take()) is not None:
            worker = self._start_worker(number, environment)
            try:
                while unit is not None and self._make_unit(worker, unit):
                    self._queue.finish()
                    unit = self._queue.take()
            finally:
                with self._lock:
                    self._workers.remove(worker)
                reason = worker.end()
            if unit is not None:
                self._report_loss(worker, unit, reason)
            can_draw = worker.has_drawn

    def _start_worker(self, number: int, environment: Mapping[str, str]) -> _Worker:
        gpu = environment.get(VISIBLE_DEVICES_VARIABLE)
        name = f"Worker {number}" if gpu is None else f"Worker {number} on GPU {gpu}"
        ours, theirs = Pipe()
        descriptor = theirs.fileno()
        code = WORKER_CODE.format(path=sys.path, descriptor=descriptor)
        with theirs, self._lock:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, **environment},
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints is no result of ours
                start_new_session=True,  # so that Ctrl-C reaches it only from us
            )
            worker = _Worker(name, environment, process, ours)
            self._workers.append(worker)
            worker.send(self._address)
            if self._last_signal is not None:
                worker.signal(self._last_signal)
        return worker

    def _make_unit(self, worker: _Worker, unit: WorkUnit) -> bool:
        """Whether the worker has made the unit, before it was lost."""
        with self._lock:
            worker.send(unit)
        for message in worker.messages():
            if isinstance(message, WorkUnit):
                return True
            if isinstance(message, TryAgain):
                worker.failure = message
                return False
            if isinstance(message, Exception):  # no worker can do better
                if not isinstance(message, KilnError):
                    message.add_note(f"Raised in {worker.name}.")
                raise message
            with self._lock:
                self._pass_on(worker, unit, message)
        return False

    def _pass_on(self, worker: _Worker, unit: WorkUnit, message: object) -> None:
        match message:
            case Images("existing", images):
                self._progress.add_existing(max(0, images - self._committed[unit]))
                self._committed[unit] = images
            case Images("drawn", images):
                worker.has_drawn = True
                worker.uncommitted += images
                self._progress.add_drawn(images)
            case Images("committed", images):
                worker.uncommitted -= images
                self._committed[unit] += images
                self._progress.add_committed(images)
            case ShardStats():
                self._record(message)
            case Event():
                self._show_once(message.name, message)

    def _record(self, stats: ShardStats) -> None:
        """Add a unit's statistics to its shard's. All units of this command are one attempt."""
        self._meter.note_device(stats.device)
        if stats.shard in self._shards_with_stats:
            stats = replace(stats, attempts=0)
        self._shards_with_stats.add(stats.shard)
        self._meter.add_stats(stats)

    def _report_loss(self, worker: _Worker, unit: WorkUnit, reason: str) -> None:
        """Leave the unit of a worker that has ended to others, or to one in its place."""
        with self._lock:
            self._queue.put_back(unit)
            if self._last_signal is not None:
                return
            self._progress.add_drawn(-worker.uncommitted)
            self._last_reason = reason
            if self._workers or worker.has_drawn:
                sentence = f"{reason} Other processes make what is missing."
                self._show_once(reason, Event("worker_lost", {}, sentence))

    def _show_once(self, key: str, event: Event) -> None:
        """Show what one worker reports, not again what others report likewise."""
        if key not in self._shown_events:
            self._shown_events.add(key)
            self._progress.show_event(event)
