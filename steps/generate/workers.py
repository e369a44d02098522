"""Several worker processes, each with a GPU of its own or a share of the CPU, make one run.

One loop gives each worker its next unit of work. If a worker is lost, another makes what is missing
of its unit, and a new one takes its place unless it never got to draw.

`ProcessPoolExecutor` would not do: it ends all processes with one that is killed, gives none an
environment of its own nor a signal, lets them outlive a parent that is killed, and runs a user's
script again that calls us without a guard.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from signal import SIGKILL, SIGTERM, Signals

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.generate.meter import Meter, meter_attempt
from imagekiln.steps.generate.metrics_server import forget_worker
from imagekiln.steps.generate.worker import END_AFTER_PART_SIGNAL, Images, WorkUnit
from imagekiln.steps.job.job import Job
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import Run, address_of
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.machine import (
    THREADS_VARIABLE,
    VISIBLE_DEVICES_VARIABLE,
    available_cpus,
)
from imagekiln.steps.runtime.progress import Event, Progress
from imagekiln.steps.runtime.signals import GRACE_SECONDS, Stop

MAX_ATTEMPTS = 3  # of a unit: after that, it may be what ends its workers
POLL_SECONDS = 0.2
END_SECONDS = GRACE_SECONDS + 5.0  # for a worker to end in, once it was asked to
# With the path of this process, as multiprocessing does it: checks of the user's are found alike.
WORKER_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from imagekiln.steps.generate.worker import main; main({descriptor})"
)
Environment = Mapping[str, str]


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
    """A process and the unit that it makes. Of its images, some are drawn and `uncommitted`."""

    name: str
    environment: Environment
    process: subprocess.Popen[bytes]
    connection: Connection
    unit: WorkUnit | None = None
    uncommitted: int = 0
    has_drawn: bool = False
    failure: TryAgain | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more will come. A child of it may keep the connection open."""
        return self.process.poll() is not None and not self.connection.poll()

    def send(self, message: object) -> None:
        """Send a message, unless the process has ended."""
        with suppress(OSError):
            self.connection.send(message)

    def signal(self, number: Signals) -> None:
        """Signal the process; SIGKILL also what it has started, which would outlive it."""
        with suppress(ProcessLookupError):
            if number == SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def end(self) -> str:
        """Close the connection, let the process end, and return why it ended."""
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
    """The workers, the units that none of them has made, and what they report."""

    def __init__(self, address: str, units: Sequence[WorkUnit], meter: Meter, stop: Stop) -> None:
        self._address = address
        self._units = [*reversed(units)]  # the next one is the last
        self._lost_units = Counter[WorkUnit]()
        self._meter = meter
        self._progress = meter.progress
        self._stop = stop
        self._workers: list[_Worker] = []
        self._last_signal: Signals | None = None
        self._shards_with_stats: set[int] = set()
        self._committed = Counter[WorkUnit | None]()
        self._shown_events: set[str] = set()
        self._last_reason = ""
        self._is_complete = True

    def make_all(self, environments: Sequence[Environment]) -> None:
        """Make all units. If one worker fails, the others may commit the part that they are at."""
        try:
            for number, environment in enumerate(environments[: len(self._units)], 1):
                gpu = environment.get(VISIBLE_DEVICES_VARIABLE)
                name = f"Worker {number}" if gpu is None else f"Worker {number} on GPU {gpu}"
                self._start_worker(name, environment)
            while self._assign_units():
                self._pass_on_stop()
                self._receive()
            for worker in self._workers:
                worker.connection.close()
        except BaseException:
            self._signal_all(SIGTERM)
            raise
        finally:
            for worker in self._workers:
                worker.end()
        if self._is_complete and not self._units:
            return
        reason = f"images are missing, because workers were lost ({self._last_reason.rstrip('.')})"
        if self._stop.requested_at is not None:
            reason = "was stopped"
        raise TryAgain(f"{self._address}: {reason}. Run the same command again to resume.")

    def _start_worker(self, name: str, environment: Environment) -> None:
        ours, theirs = Pipe()
        descriptor = theirs.fileno()
        code = WORKER_CODE.format(path=sys.path, descriptor=descriptor)
        with theirs:
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

    def _assign_units(self) -> bool:
        """Give units to workers that have none; return whether any worker has one."""
        for worker in self._workers:
            if worker.unit is None and self._units and self._last_signal is None:
                worker.unit = self._units.pop()
                worker.send(worker.unit)
        return any(worker.unit is not None for worker in self._workers)

    def _receive(self) -> None:
        """Take a message of each worker that sent one, and replace those that have ended."""
        ready = wait([worker.connection for worker in self._workers], POLL_SECONDS)
        for worker in [*self._workers]:
            has_ended = worker.has_ended
            if worker.connection in ready and not has_ended:
                try:
                    self._take(worker, worker.connection.recv())
                except (EOFError, OSError):
                    has_ended = True
            if has_ended:
                self._replace(worker)

    def _take(self, worker: _Worker, message: object) -> None:
        match message:
            case WorkUnit():
                worker.unit = None
            case TryAgain():
                worker.failure = message
            case Exception():  # no worker can do better
                if not isinstance(message, KilnError):
                    message.add_note(f"Raised in {worker.name}.")
                raise message
            case ShardStats():
                self._record(message)
            case Event():
                self._show_once(message.name, message)
            case Images():
                self._count(worker, message)

    def _count(self, worker: _Worker, counted: Images) -> None:
        images = counted.images
        if counted.state == "drawn":
            worker.has_drawn = True
            worker.uncommitted += images
            self._progress.add_drawn(images)
        elif counted.state == "committed":
            worker.uncommitted -= images
            self._committed[worker.unit] += images
            self._progress.add_committed(images)
        else:
            self._progress.add_existing(max(0, images - self._committed[worker.unit]))
            self._committed[worker.unit] = images

    def _record(self, stats: ShardStats) -> None:
        """Add a unit's statistics to its shard's. All units of this command are one attempt."""
        self._meter.note_device(stats.device)
        if stats.shard in self._shards_with_stats:
            stats = replace(stats, attempts=0)
        self._shards_with_stats.add(stats.shard)
        self._meter.add_stats(stats)

    def _replace(self, worker: _Worker) -> None:
        """Leave the unit of a worker that has ended to others, or to one in its place."""
        self._workers.remove(worker)
        reason = worker.end()
        if worker.unit is None:
            return
        self._put_back(worker.unit)
        if self._last_signal is not None:
            return
        self._progress.add_drawn(-worker.uncommitted)
        self._last_reason = reason
        if worker.has_drawn and self._units:
            self._start_worker(worker.name, worker.environment)
        if self._workers:
            sentence = f"{reason} Other processes make what is missing."
            self._show_once(reason, Event("worker_lost", {}, sentence))

    def _put_back(self, unit: WorkUnit) -> None:
        """Let another worker make a unit; give it up after some attempts."""
        self._lost_units[unit] += 1
        if self._lost_units[unit] < MAX_ATTEMPTS:
            self._units.append(unit)
        else:
            self._is_complete = False

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
            worker.signal(number)

    def _show_once(self, key: str, event: Event) -> None:
        """Show what one worker reports, not again what others report likewise."""
        if key not in self._shown_events:
            self._shown_events.add(key)
            self._progress.show_event(event)
