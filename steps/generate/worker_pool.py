"""Several worker processes, each with a GPU of its own or a share of the CPU, make one run.

Each takes the next unit of work when it has finished one. Where a worker is lost, another makes
what is missing of its unit, and a new one takes its place unless it never got to draw.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Self, cast

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.metrics_server import forget_worker
from imagekiln.steps.generate.work_queue import WorkQueue, WorkUnit
from imagekiln.steps.generate.worker import (
    Assignment,
    EndAfterPart,
    Images,
    UnitFinished,
    WeightsVerified,
    WorkerCrashed,
    WorkerFailed,
)
from imagekiln.steps.models.weights_check import WeightsCheck
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import ShardStats, record_stats
from imagekiln.steps.runtime.machine import VISIBLE_DEVICES_VARIABLE
from imagekiln.steps.runtime.progress import Event, Progress
from imagekiln.steps.runtime.signals import GRACE_SECONDS, Stop
from imagekiln.steps.storage.store import Store

POLL_SECONDS = 0.2
END_SECONDS = GRACE_SECONDS + 5.0  # that a worker has to end in, once it was asked to
# With the path of this process, as multiprocessing does it: checks of the user's are found alike.
WORKER_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from imagekiln.steps.generate.worker import main; main({descriptor})"
)


def make_shards(
    store: Store,
    plan: Plan,
    shards: Sequence[int],
    environments: Sequence[Mapping[str, str]],
    progress: Progress,
    stop: Stop,
) -> None:
    """Make what is missing of the shards with a worker process for each environment.

    An environment has what differs from that of this process. `progress` has been started. Raises
    BadInput where the workers cannot make the run, TryAgain where it was stopped, or so many
    workers were lost that images are missing.
    """
    devices = len(environments)
    queue = WorkQueue(plan, shards, devices)
    with (
        stop.deferred(),
        meter_attempt(store, plan, progress, stop, shards=shards, devices=devices) as meter,
        WeightsCheck(plan.job.model, plan.model.digest) as weights,
        _WorkerPool(store, queue, meter.progress, meter.note_device) as pool,
    ):
        for environment in environments:
            pool.start_worker(environment)
        pool.work(weights, stop)
        pool.dismiss()
        pool.require_complete()


@dataclass(slots=True)
class _Worker:
    """A process, the unit that it makes, if any, and what it reported of that unit."""

    number: int
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]
    connection: Connection
    unit: WorkUnit | None = None
    drawn: int = 0
    committed: int = 0
    has_drawn: bool = False
    failure: TryAgain | None = None

    @property
    def name(self) -> str:
        """The worker as messages name it."""
        gpu = self.environment.get(VISIBLE_DEVICES_VARIABLE)
        return f"worker {self.number}" if gpu is None else f"worker {self.number} on GPU {gpu}"


class _WorkerPool:
    """The workers, what they are given, and what becomes of what they report."""

    def __init__(
        self,
        store: Store,
        queue: WorkQueue,
        progress: Progress,
        note_device: Callable[[str], None],
    ) -> None:
        self._store = store
        self._queue = queue
        self._progress = progress
        self._note_device = note_device
        self._workers: dict[Connection, _Worker] = {}
        self._started = 0
        self._weights_verified = False
        self._asked_to_end = False
        self._sent_signals = False
        self._stopped_units = 0
        self._shards_with_stats: set[int] = set()
        self._committed_before: Counter[WorkUnit] = Counter()
        self._event_keys: set[str] = set()
        self._last_reason = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers. Unless they were asked before, they may commit what they are at."""
        try:
            if not self._asked_to_end:
                self._ask_to_end()
                self._await_end()
        finally:
            for worker in self._workers.values():
                _kill(worker)
                worker.connection.close()

    def start_worker(self, environment: Mapping[str, str]) -> None:
        """Start a process and give it the next unit, if there is any."""
        unit = self._queue.take()
        if unit is None:
            return
        ours, theirs = Pipe()
        descriptor = theirs.fileno()
        code = WORKER_CODE.format(path=sys.path, descriptor=descriptor)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a library prints is no result of ours
            start_new_session=True,  # so that Ctrl-C reaches it only from us
        )
        theirs.close()
        self._started += 1
        worker = _Worker(self._started, environment, process, ours)
        self._workers[ours] = worker
        self._send(worker, Assignment(self._store.uri, self._weights_verified))
        self._assign(worker, unit)

    def work(self, weights: WeightsCheck, stop: Stop) -> None:
        """Pass on units and reports until nothing is left to make, or nobody to make it."""
        while any(worker.unit is not None for worker in self._workers.values()):
            if not self._weights_verified and weights.is_done:
                weights.require_planned()
                self._announce_weights()
            if stop.requested_at is not None and self._pass_on_stop(stop):
                self._stopped_units += 1
                return
            for connection in wait(list(self._workers), POLL_SECONDS):
                self._receive(self._workers[cast("Connection", connection)])
            self._bury_dead()

    def dismiss(self) -> None:
        """Let the workers end by themselves, since nothing is left for them."""
        if self._stopped_units:  # their time is over
            return
        for worker in self._workers.values():
            self._send(worker, None)
        self._await_end()

    def require_complete(self) -> None:
        """Raise TryAgain where parts are missing."""
        if self._stopped_units or (self._asked_to_end and not self._queue.is_empty):
            raise TryAgain(f"{self._store.uri}: was stopped. Run the same command again to resume.")
        if self._queue.given_up or not self._queue.is_empty:
            raise TryAgain(
                f"{self._store.uri}: images are missing, because workers were lost "
                f"({self._last_reason.rstrip('.')}). Run the same command again to resume."
            )

    def _announce_weights(self) -> None:
        self._weights_verified = True
        for worker in self._workers.values():
            self._send(worker, WeightsVerified())

    def _pass_on_stop(self, stop: Stop) -> bool:
        """Ask the workers to end as this process was asked; whether their time is over."""
        if stop.waits_for_part:
            if not self._asked_to_end:
                self._asked_to_end = True
                for worker in self._workers.values():
                    self._send(worker, EndAfterPart())
            return False
        if not self._sent_signals:
            self._ask_to_end()
        return time.monotonic() > (stop.requested_at or 0.0) + END_SECONDS

    def _ask_to_end(self) -> None:
        self._asked_to_end = True
        self._sent_signals = True
        for worker in self._workers.values():
            worker.process.send_signal(signal.SIGTERM)

    def _await_end(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        for worker in self._workers.values():
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))

    def _send(self, worker: _Worker, message: object) -> None:
        with suppress(OSError):  # it has ended, as the end of its connection will say
            worker.connection.send(message)

    def _assign(self, worker: _Worker, unit: WorkUnit | None) -> None:
        """Give a worker a unit, or let it wait in case another one is lost."""
        worker.unit = unit
        worker.drawn = 0
        worker.committed = 0
        if unit is not None:
            self._send(worker, unit)

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        match message:
            case Images():
                self._count(worker, message)
            case ShardStats():
                self._record(message)
            case UnitFinished():
                self._assign(worker, None if self._asked_to_end else self._queue.take())
            case WorkerFailed():
                self._fail(worker, message.to_error())
            case WorkerCrashed():
                raise RuntimeError(f"{worker.name} failed:\n{message.traceback}")
            case Event():
                self._show_once(message.name, message)

    def _count(self, worker: _Worker, message: Images) -> None:
        unit = worker.unit
        if unit is None:
            return
        if message.state == "existing":
            known_images = self._committed_before[unit]
            self._committed_before[unit] = message.images
            if message.images > known_images:
                self._progress.add_existing(message.images - known_images)
        elif message.state == "drawn":
            worker.has_drawn = True
            worker.drawn += message.images
            self._progress.add_drawn(message.images)
        else:
            worker.committed += message.images
            self._committed_before[unit] += message.images
            self._progress.add_committed(message.images)

    def _record(self, stats: ShardStats) -> None:
        """Add a unit's statistics to its shard's. All units of this command are one attempt."""
        self._note_device(stats.device)
        if stats.shard in self._shards_with_stats:
            stats = replace(stats, attempts=0)
        self._shards_with_stats.add(stats.shard)
        record_stats(self._store, stats)

    def _fail(self, worker: _Worker, failure: KilnError) -> None:
        """Go on without a worker that ends. Where no worker can do better, all end."""
        if not isinstance(failure, TryAgain):
            raise failure
        worker.failure = failure
        self._bury(worker)  # a thread that hangs may keep its connection open

    def _bury_dead(self) -> None:
        """Find workers whose connection does not end with them: a child of theirs has it too."""
        for worker in list(self._workers.values()):
            if worker.process.poll() is not None and not worker.connection.poll():
                self._bury(worker)

    def _bury(self, worker: _Worker) -> None:
        """Go on without a worker that has ended: others make its unit, or one in its place."""
        del self._workers[worker.connection]
        worker.connection.close()
        reason = _describe_end(worker)
        forget_worker(worker.environment, worker.process.pid)
        if worker.unit is None:
            return
        if self._asked_to_end:
            self._stopped_units += 1
            return

        self._progress.add_drawn(worker.committed - worker.drawn)
        self._queue.put_back(worker.unit)
        self._last_reason = reason
        if worker.has_drawn:
            self.start_worker(worker.environment)
        self._employ_idle_workers()
        if self._workers:
            event = Event("worker_lost", {}, f"{reason} Other processes make what is missing.")
            self._show_once(reason, event)

    def _employ_idle_workers(self) -> None:
        for worker in self._workers.values():
            if worker.unit is None:
                self._assign(worker, self._queue.take())

    def _show_once(self, key: str, event: Event) -> None:
        """Show what one worker reports, not again what others report likewise."""
        if key not in self._event_keys:
            self._event_keys.add(key)
            self._progress.show_event(event)


def _kill(worker: _Worker) -> int:
    """End a worker, and what it has started; its exit code."""
    with suppress(ProcessLookupError):
        os.killpg(worker.process.pid, signal.SIGKILL)
    return worker.process.wait()


def _describe_end(worker: _Worker) -> str:
    """Why a worker ended, as a sentence, once it has."""
    with suppress(subprocess.TimeoutExpired):
        worker.process.wait(END_SECONDS)
    code = _kill(worker)
    if worker.failure is not None:
        return str(worker.failure)
    name = worker.name.capitalize()
    if code == -signal.SIGKILL:
        return f"{name} was killed, perhaps because memory ran out."
    if code < 0:
        return f"{name} was ended by {signal.Signals(-code).name}."
    return f"{name} ended with exit code {code}."
