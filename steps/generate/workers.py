"""Generate a run with several worker processes, one for each GPU or share of the CPU.

One loop gives each worker its next unit of work. If a worker is lost, another completes its unit.

`ProcessPoolExecutor` does not fit: one killed process breaks its whole pool, it cannot set a
process's environment or signal it, its processes outlive a killed parent, and it reruns a user's
script that lacks a `__main__` guard.
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

MAX_ATTEMPTS = 3  # of a unit, which may itself be what crashes the workers
POLL_SECONDS = 0.2
PARENT_CHECK_SECONDS = 0.5
END_SECONDS = GRACE_SECONDS + 5.0  # for a worker to end after it was asked to
END_AFTER_PART_SIGNAL = SIGUSR1
# With `sys.path` of this process, as in multiprocessing, so that the user's checks can be imported.
WORKER_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from imagekiln.steps.generate.workers import run_worker; run_worker({descriptor})"
)
Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A range of parts of one shard, from `first_part` to before `end_part`."""

    shard: int
    first_part: int
    end_part: int

    @property
    def parts(self) -> slice:
        """The range as a slice of the shard's parts."""
        return slice(self.first_part, self.end_part)


def choose_environments(job: Job, gpus: int | None) -> list[dict[str, str]]:
    """Return the environment variables of each worker: one worker for each of `gpus` GPUs.

    By default, uses all visible GPUs, or one worker on the CPU. Raises BadInput if the device
    cannot be used or there are fewer GPUs.
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
    """Return the environment variables of one worker for each of these GPUs."""
    return _share_cpus([{VISIBLE_DEVICES_VARIABLE: name} for name in names])


def _visible_gpus(device: str) -> list[str]:
    # Imported here, since torch takes seconds. It knows how CUDA and ROCm read the variables.
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
    """Generate the missing parts of the shards with a worker process for each environment.

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
    """Split these shards into units: whole shards at first, then ever fewer parts.

    All workers therefore finish at about the same time.
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
    """A worker process, its current unit, and the failure that it reported."""

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
        """Wait for the process to end, or kill it. Return the reason it ended."""
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
            stdout=2,  # stdout is for results, not for what libraries print
            start_new_session=True,  # Ctrl-C reaches it only through this process
        )
    return _Worker(name, process, ours)


class _WorkerPool:
    """The workers of a run and the units that are left for them."""

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
        """Generate all units. If one worker fails, the others may commit their current part."""
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
        """Give units to idle workers; return whether any worker is busy."""
        for worker in self._workers:
            if worker.unit is None and self._left and self._last_signal is None:
                worker.unit = self._left.pop(0)
                worker.send(worker.unit)
        return any(worker.unit is not None for worker in self._workers)

    def _receive(self) -> None:
        """Receive and handle one message from each worker that sent any."""
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
        """Add a unit's statistics to its shard's. All units of a shard count as one attempt."""
        self._meter.note_device(stats.device)
        if stats.shard in self._shards_with_stats:
            stats = replace(stats, attempts=0)
        self._shards_with_stats.add(stats.shard)
        self._meter.add_stats(stats)

    def _lose(self, worker: _Worker) -> None:
        """Remove a worker that has ended, and put its unit back unless it was lost too often."""
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
        """Forward a stop request to the workers, and kill them after their grace period."""
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
        """Send a signal to all workers, once. They get no more units."""
        if number == self._last_signal:
            return
        self._last_signal = number
        for worker in self._workers:
            worker.process.send_signal(number)


def run_worker(file_descriptor: int) -> None:
    """Generate the units received over the inherited connection until it closes.

    The first message is the run's address. Finished units and fatal errors are sent back.
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
        except Exception:  # noqa: BLE001  # the parent reports it, once for all workers
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
    with suppress(EOFError, OSError):  # no units are left, or the parent has ended
        while stop.requested_at is None:
            yield connection.recv()


class _Reports(Progress):
    """Progress that is sent to the parent process, from any thread; dropped if it has ended."""

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
