"""A worker process: takes units of a run from the process that started it, and makes them.

It ends when it is told to, when it fails, or when the process that started it is gone.
"""

import os
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Literal

from imagekiln.steps.errors import (
    BadInput,
    BudgetSpent,
    Incomplete,
    KilnError,
    Missing,
    NotInstalled,
    TryAgain,
)
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.metrics_server import count_in_worker
from imagekiln.steps.generate.work_queue import WorkUnit
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.start_times import StartClock
from imagekiln.steps.runtime.machine import silence_libraries
from imagekiln.steps.runtime.progress import Event, NoProgress
from imagekiln.steps.runtime.signals import Stop, Stopped, stop_on_signals
from imagekiln.steps.storage import open_store

FAILURES: dict[str, type[KilnError]] = {
    error.__name__: error
    for error in (NotInstalled, Missing, BadInput, BudgetSpent, Incomplete, TryAgain, KilnError)
}
ImageState = Literal["existing", "drawn", "committed"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The first message to a worker: its run, and whether it checks the model's files itself."""

    run: str
    checks_weights: bool


@dataclass(frozen=True, slots=True)
class WeightsVerified:
    """The model's files are the planned ones: a worker that waited for this may draw."""


@dataclass(frozen=True, slots=True)
class EndAfterPart:
    """The worker is to end after the part that it is at."""


@dataclass(frozen=True, slots=True)
class Images:
    """So many more images are on disk already, drawn or committed."""

    state: ImageState
    images: int


@dataclass(frozen=True, slots=True)
class UnitFinished:
    """Nothing of the worker's unit is missing any more."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker ends with a failure that has a sentence, of the class of this name."""

    error_class: str
    sentences: tuple[str, ...]

    @classmethod
    def of(cls, error: KilnError) -> "WorkerFailed":
        """The message for a failure, also for one of a class that only the worker knows."""
        name = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
        return cls(name, tuple(map(str, error.args)))

    def to_error(self) -> KilnError:
        """The failure as it can be raised in the other process."""
        return FAILURES[self.error_class](*self.sentences)


@dataclass(frozen=True, slots=True)
class WorkerCrashed:
    """The worker ends with an error that nobody expected."""

    traceback: str


def main(file_descriptor: int) -> None:
    """Work until there is nothing left, over the connection that was inherited."""
    os.set_inheritable(file_descriptor, False)
    silence_libraries()
    count_in_worker()
    with Connection(file_descriptor) as connection:
        port = _Port(connection)
        try:
            with stop_on_signals(at_once=True) as stop:
                _work(port, connection.recv(), stop)
        except Stopped:
            return
        except KilnError as error:
            port.send(WorkerFailed.of(error))
        except Exception:  # noqa: BLE001  # the other process reports it, once for all workers
            port.send(WorkerCrashed(traceback.format_exc()))


def _work(port: "_Port", assignment: Assignment, stop: Stop) -> None:
    store = open_store(assignment.run)
    plan = load_plan(store)
    inbox = _Inbox(port, plan, stop)
    actual_digest = None if assignment.checks_weights else inbox.digest
    clock = StartClock.of_process()
    with Startup.begin(plan, clock, actual_digest=actual_digest) as startup:
        with clock.phase("imports"):
            from imagekiln.steps.generate.step import LazyDenoiser, generate_shard

        with closing(LazyDenoiser(store, plan, startup)) as open_denoiser:
            for unit in inbox.units():
                generate_shard(
                    store,
                    plan,
                    unit.shard,
                    open_denoiser,
                    _WorkerProgress(port),
                    stop,
                    startup,
                    parts=unit.parts,
                    record=port.send,
                )
                port.send(UnitFinished())


class _Port:
    """Sends messages from any thread. Where nobody listens any more, they are dropped."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        with self._lock, suppress(OSError):
            self.connection.send(message)


class _Inbox:
    """Receives messages in a thread, so that the end of the other process is noticed at once."""

    def __init__(self, port: _Port, plan: Plan, stop: Stop) -> None:
        self.digest: Future[str] = Future()
        self._port = port
        self._planned_digest = plan.model.digest
        self._stop = stop
        self._units: SimpleQueue[WorkUnit | None] = SimpleQueue()
        threading.Thread(target=self._receive, name="inbox", daemon=True).start()

    def units(self) -> Iterator[WorkUnit]:
        """The units to make, as they come, until a stop is requested."""
        while self._stop.requested_at is None and (unit := self._units.get()) is not None:
            yield unit

    def _receive(self) -> None:
        try:
            while True:
                message = self._port.connection.recv()
                if isinstance(message, WeightsVerified):
                    self.digest.set_result(self._planned_digest)
                elif isinstance(message, EndAfterPart):
                    self._stop.request_after_part()
                else:
                    self._units.put(message)
        except (EOFError, OSError):  # the other process has ended
            self._stop.request()
            self.digest.cancel()
            self._units.put(None)


class _WorkerProgress(NoProgress):
    """Passes on what is reported."""

    def __init__(self, port: _Port) -> None:
        self._port = port

    def add_existing(self, images: int) -> None:
        self._send("existing", images)

    def add_drawn(self, images: int) -> None:
        self._send("drawn", images)

    def add_committed(self, images: int) -> None:
        self._send("committed", images)

    def show_event(self, event: Event) -> None:
        self._port.send(event)

    def _send(self, state: ImageState, images: int) -> None:
        self._port.send(Images(state, images))
