"""A worker process: makes units of a run for the process that started it.

It ends when it is told to, when it fails, or when that process is gone.
"""

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from imagekiln.steps.errors import KilnError
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.metrics_server import count_in_worker
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runs.stats import StartClock
from imagekiln.steps.runtime.machine import silence_libraries
from imagekiln.steps.runtime.progress import Event, NoProgress
from imagekiln.steps.runtime.signals import Stop, Stopped, stop_on_signals

END_AFTER_PART_SIGNAL = signal.SIGUSR1
PARENT_CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """Parts of one shard, from `first_part` to before `end_part`."""

    shard: int
    first_part: int
    end_part: int

    @property
    def parts(self) -> slice:
        """The parts as a slice of all parts of the shard."""
        return slice(self.first_part, self.end_part)


@dataclass(frozen=True, slots=True)
class Images:
    """A report of images that exist, or of more that are drawn or committed."""

    state: Literal["existing", "drawn", "committed"]
    images: int


def main(file_descriptor: int) -> None:
    """Work over the inherited connection until there is nothing left.

    The run comes first, then unit after unit. Finished units and a fatal error are sent back.
    """
    os.set_inheritable(file_descriptor, False)
    silence_libraries()
    count_in_worker()
    with Connection(file_descriptor) as connection:
        reports = _Reports(connection)
        try:
            with stop_on_signals(at_once=True) as stop:
                signal.signal(END_AFTER_PART_SIGNAL, lambda *_: stop.request_after_part())
                watch = threading.Thread(target=_watch_parent, args=[os.getppid(), stop])
                watch.daemon = True
                watch.start()
                _work(connection, reports, stop)
        except Stopped:
            return
        except KilnError as error:
            reports.send(_plain_failure(error))
        except Exception:  # noqa: BLE001  # the other process reports it, once for all workers
            reports.send(RuntimeError(traceback.format_exc()))


def _watch_parent(parent: int, stop: Stop) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    stop.request()


def _plain_failure(error: KilnError) -> KilnError:
    """The failure as one of a class that can be imported without PyTorch."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == KilnError.__module__)
    failure: KilnError = kind(*map(str, error.args))
    return failure


def _work(connection: Connection, reports: "_Reports", stop: Stop) -> None:
    run = open_run(connection.recv())
    store = run.store
    plan = run.addressed_plan
    with Startup(plan, StartClock.of_process()) as startup:
        with startup.clock.phase("imports"):
            from imagekiln.steps.generate.step import LazyDenoiser, generate_shard

        with closing(LazyDenoiser(store, plan, startup)) as open_denoiser:
            for unit in _units(connection, stop):
                generate_shard(
                    store,
                    plan,
                    unit.shard,
                    open_denoiser,
                    reports,
                    stop,
                    parts=unit.parts,
                    record=reports.send,
                )
                reports.send(unit)


def _units(connection: Connection, stop: Stop) -> Iterator[WorkUnit]:
    with suppress(EOFError, OSError):  # no more is wanted, or the other process has ended
        while stop.requested_at is None:
            yield connection.recv()


class _Reports(NoProgress):
    """Reports to the other process, from any thread. They are dropped if nobody listens."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def add_existing(self, images: int) -> None:
        self.send(Images("existing", images))

    def add_drawn(self, images: int) -> None:
        self.send(Images("drawn", images))

    def add_committed(self, images: int) -> None:
        self.send(Images("committed", images))

    def show_event(self, event: Event) -> None:
        self.send(event)

    def send(self, message: object) -> None:
        with self._lock, suppress(OSError):
            self._connection.send(message)
