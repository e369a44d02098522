"""Several worker processes, each with a GPU of its own or a share of the CPU, make one run.

One loop gives each worker its next unit of work. If a worker is lost, another makes what is missing
of its unit.

`ProcessPoolExecutor` would not do: it ends all processes with one that is killed, gives none an
environment of its own nor a signal, lets them outlive a parent that is killed, and runs a user's
script again that calls us without a guard.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from signal import SIGKILL, SIGTERM, SIGUSR1, Signals

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.generate.meter import Meter, meter_attempt
from imagekiln.steps.generate.metrics_server import count_in_worker
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.facts import WeightsCheck
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import Run, address_of, open_run
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.machine import (
    THREADS_VARIABLE,
    VISIBLE_DEVICES_VARIABLE,
    available_cpus,
    silence_libraries,
)
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import GRACE_SECONDS, Stop, Stopped, stop_on_signals

MAX_ATTEMPTS = 3  # of a unit: after that, it may be what ends its workers
POLL_SECONDS = 0.2
PARENT_CHECK_SECONDS = 0.5
END_SECONDS = GRACE_SECONDS + 5.0  # for a worker to end in, once it was asked to
END_AFTER_PART_SIGNAL = SIGUSR1
# With the path of this process, as multiprocessing does it: checks of the user's are found alike.
WORKER_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from imagekiln.steps.generate.workers import run_worker; run_worker({descriptor})"
)
Environment = Mapping[str, str]


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


def choose_environments(job: Job, gpus: int | None) -> list[dict[str, str]]:
    """Choose the workers of a run: one for each of `gpus` GPUs, or of all that are visible.

    Each is given by the variables in which it differs. On the CPU, there is one by default. Raises
    BadInput if the device cannot be used, or there are not so many.
    """
    if job.device == "cpu":
        return _share_cpus([{}] * (gpus or 1))

    names = _visible_gpus(job.device)
    count = len(names) if gpus is None else gpus
    if count > max(1, len(names)):
        raise BadInput(
            f"--gpus {count}: {pluralize(len(names), 'GPU')} visible here. Ask for fewer, set "
            f"{VISIBLE_DEVICES_VARIABLE}, or set device: cpu for so many processes on the CPU. "
            "That is another run, since its id depends on the device."
        )
    return gpu_environments(names[:count]) if names else [{}]


def gpu_environments(names: Sequence[str]) -> list[dict[str, str]]:
    """Give each worker one of these GPUs."""
    return _share_cpus([{VISIBLE_DEVICES_VARIABLE: name} for name in names])


def _visible_gpus(device: str) -> list[str]:
    # Imported only here: torch takes seconds, and knows what CUDA, ROCm and drivers make of it.
    from imagekiln.steps.generate.diffusion.device import choose_kind, find_gpus

    try:
        kind = choose_kind(device)
    except TryAgain as error:  # another attempt would be on the same machine
        raise BadInput(*error.args) from error
    return find_gpus() if kind == "cuda" else []


def _share_cpus(environments: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Add an equal share of the CPUs to each environment, unless the user sets threads."""
    if THREADS_VARIABLE in os.environ or len(environments) == 1:
        return list(environments)
    threads = max(1, available_cpus() // len(environments))
    return [{**environment, THREADS_VARIABLE: str(threads)} for environment in environments]


def make_shards(
    run: Run,
    plan: Plan,
    shards: Sequence[int],
    environments: Sequence[Environment],
    progress: Progress,
    stop: Stop,
) -> None:
    """Make what is missing of the shards with a worker process for each environment.

    Raises BadInput if the run cannot be made, TryAgain if it was stopped or images are missing.
    """
    devices = len(environments)
    with (
        stop.deferred(),
        meter_attempt(run, plan, progress, stop, shards=shards, devices=devices) as meter,
    ):
        meter.progress.start(sum(plan.shards[shard].images for shard in shards))
        units = split_work(plan, shards, devices)
        _WorkerPool(address_of(run.store.uri, plan), units, meter, stop).make_all(environments)


def split_work(plan: Plan, shards: Iterable[int], workers: int) -> list[WorkUnit]:
    """Split these shards into units: whole shards while there are many, then fewer parts.

    So all workers end at about the same time.
    """
    part_counts = {shard: plan.part_count(shard) for shard in shards}
    left = sum(part_counts.values())
    units: list[WorkUnit] = []
    for shard, count in part_counts.items():
        first = 0
        while first < count:
            end = min(count, first + -(-left // (2 * workers)))
            units.append(WorkUnit(shard, first, end))
            left -= end - first
            first = end
    return units


@dataclass(slots=True)
class _Worker:
    """A process, the unit that it makes, and the failure that it reported."""

    name: str
    process: subprocess.Popen[bytes]
    connection: Connection
    unit: WorkUnit | None = None
    failure: TryAgain | None = None

    def send(self, message: object) -> None:
        """Send a message, unless the process has ended."""
        with suppress(OSError):
            self.connection.send(message)

    def end(self) -> str:
        """Let the process end, and return why it ended."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.process.kill()
        code = self.process.wait()
        if self.failure is not None:
            return str(self.failure)
        if code == -SIGKILL:
            return f"{self.name} was killed, perhaps because memory ran out."
        return f"{self.name} ended with exit code {code}."


def _start_worker(number: int, environment: Environment) -> _Worker:
    gpu = environment.get(VISIBLE_DEVICES_VARIABLE)
    name = f"Worker {number}" if gpu is None else f"Worker {number} on GPU {gpu}"
    ours, theirs = Pipe()
    descriptor = theirs.fileno()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER_CODE.format(path=sys.path, descriptor=descriptor)],
            env={**os.environ, **environment},
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a library prints is no result of ours
            start_new_session=True,  # so that Ctrl-C reaches it only from us
        )
    return _Worker(name, process, ours)


class _WorkerPool:
    """The workers, the units that none of them has made, and what they report."""

    def __init__(self, address: str, units: Sequence[WorkUnit], meter: Meter, stop: Stop) -> None:
        self._address = address
        self._left = [*units]
        self._given_up = False
        self._lost_units = Counter[WorkUnit]()
        self._meter = meter
        self._stop = stop
        self._workers: list[_Worker] = []
        self._last_signal: Signals | None = None
        self._shards_with_stats: set[int] = set()
        self._reason = ""

    def make_all(self, environments: Sequence[Environment]) -> None:
        """Make all units. If one worker fails, the others may commit the part that they are at."""
        try:
            for number, environment in enumerate(environments[: len(self._left)], 1):
                worker = _start_worker(number, environment)
                self._workers.append(worker)
                worker.send(self._address)
            while self._assign_units():
                self._pass_on_stop()
                self._receive()
        except BaseException:
            self._signal_all(SIGTERM)
            raise
        finally:
            for worker in self._workers:
                worker.connection.close()
            for worker in self._workers:
                worker.end()
        if not self._left and not self._given_up:
            return
        reason = f"images are missing, because workers were lost ({self._reason.rstrip('.')})"
        if self._stop.requested_at is not None:
            reason = "was stopped"
        raise TryAgain(f"{self._address}: {reason}. Run the same command again to resume.")

    def _assign_units(self) -> bool:
        """Give units to workers that have none; return whether any worker has one."""
        for worker in self._workers:
            if worker.unit is None and self._left and self._last_signal is None:
                worker.unit = self._left.pop(0)
                worker.send(worker.unit)
        return any(worker.unit is not None for worker in self._workers)

    def _receive(self) -> None:
        """Take a message of each worker that sent one."""
        ready = wait([worker.connection for worker in self._workers], POLL_SECONDS)
        for worker in [*self._workers]:
            if worker.connection not in ready:
                continue
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                self._lose(worker)
            else:
                self._take(worker, message)

    def _take(self, worker: _Worker, message: object) -> None:
        match message:
            case WorkUnit():
                worker.unit = None
            case TryAgain():
                worker.failure = message
            case Exception():  # no worker can do better
                raise message
            case ShardStats():
                self._record(message)
            case "add_existing", int() if worker.unit and self._lost_units[worker.unit]:
                pass  # counted when its first worker committed them
            case str(method), int(images):
                getattr(self._meter.progress, method)(images)

    def _record(self, stats: ShardStats) -> None:
        """Add a unit's statistics to its shard's. All units of this command are one attempt."""
        self._meter.note_device(stats.device)
        if stats.shard in self._shards_with_stats:
            stats = replace(stats, attempts=0)
        self._shards_with_stats.add(stats.shard)
        self._meter.add_stats(stats)

    def _lose(self, worker: _Worker) -> None:
        """Leave the unit of a worker that has ended to others."""
        self._workers.remove(worker)
        self._reason = worker.end()
        if worker.unit is None:
            return
        self._lost_units[worker.unit] += 1
        if self._lost_units[worker.unit] < MAX_ATTEMPTS:
            self._left.insert(0, worker.unit)
        else:
            self._given_up = True
        if self._workers and self._last_signal is None:
            sentence = f"{self._reason} Other processes make what is missing."
            self._meter.progress.show_event("worker_lost", sentence)

    def _pass_on_stop(self) -> None:
        """Ask the workers to end as this process was asked, and end them after their time."""
        requested_at = self._stop.requested_at
        if requested_at is None:
            return
        if self._stop.waits_for_part:
            self._signal_all(END_AFTER_PART_SIGNAL)
        elif time.monotonic() < requested_at + END_SECONDS:
            self._signal_all(SIGTERM)
        else:
            self._signal_all(SIGKILL)

    def _signal_all(self, number: Signals) -> None:
        """Signal all workers, once. None gets another unit."""
        if number == self._last_signal:
            return
        self._last_signal = number
        for worker in self._workers:
            worker.process.send_signal(number)


def run_worker(file_descriptor: int) -> None:
    """Work over the inherited connection until nothing is left or the other process is gone.

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
                _make_units(connection, reports, stop)
        except Stopped:
            return
        except KilnError as error:
            reports.send(error)
        except Exception:  # noqa: BLE001  # the other process reports it, once for all workers
            reports.send(RuntimeError(traceback.format_exc()))


def _watch_parent(parent: int, stop: Stop) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    stop.request()


def _make_units(connection: Connection, reports: "_Reports", stop: Stop) -> None:
    run = open_run(connection.recv())
    store = run.store
    plan = run.addressed_plan
    with WeightsCheck(plan.job.model, plan.model.digest) as weights:
        from imagekiln.steps.generate.step import LazyDenoiser, generate_shard

        with closing(LazyDenoiser(store, plan, weights)) as open_denoiser:
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


class _Reports(Progress):
    """Calls of the other process's progress, from any thread; dropped if nobody listens."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def add_existing(self, images: int) -> None:
        self.send(("add_existing", images))

    def add_drawn(self, images: int) -> None:
        self.send(("add_drawn", images))

    def add_committed(self, images: int) -> None:
        self.send(("add_committed", images))

    def send(self, message: object) -> None:
        with self._lock, suppress(OSError):
            self._connection.send(message)
