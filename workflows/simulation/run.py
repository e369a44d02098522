"""The generate step of a run as discrete events: pods start, make parts, are lost, are retried.

What the product decides is asked of the product, so that a simulation cannot drift from it: how
images are cut (`Sharding`), which parts a worker takes (`WorkQueue`), how many pods a workflow
holds (`split_pods`), and how often and how late Argo retries (`retry_wait`). What stays here is a
stand-in for the GPUs and the cloud.

All GPUs are alike and draw every image in the same time. A lost node loses the part that each of
its workers is at, and nothing that was committed before.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from imagekiln.steps.generate.work_queue import WorkQueue, WorkUnit
from imagekiln.steps.plan.sharding import Sharding
from imagekiln.workflows.profiles.profile import Retries
from imagekiln.workflows.templates.child_workflows import MAX_PODS, split_pods
from imagekiln.workflows.templates.pod_retries import retry_wait

SECONDS_PER_HOUR = 3600
ROUNDING_SECONDS = 1e-6
CHILD_SECONDS = 10.0  # until a child workflow that follows another creates its first pod

# How long a node lives from when it is ready, in seconds, at each call.
Lifetimes = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The GPUs of a run. Times are in seconds.

    `load_seconds` pass from the start of a pod to its first batch, `node_seconds` until a node
    that a pod waits for can start it, `idle_seconds` until an autoscaler removes an idle node, and
    `detection_seconds` until Argo notices that a node is gone.
    """

    gpus: int
    seconds_per_image: float
    load_seconds: float = 60.0
    node_seconds: float = 300.0
    idle_seconds: float = 600.0
    detection_seconds: float = 60.0
    pods_per_second: float = 5.0


@dataclass(slots=True)
class GpuTime:
    """What GPUs are paid for, in GPU-seconds. `repeated` was drawn, and lost before its commit."""

    starting: float = 0.0
    loading: float = 0.0
    drawing: float = 0.0
    repeated: float = 0.0
    idle: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.starting + self.loading + self.drawing + self.repeated + self.idle


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """How a run went. `missing` images are of shards whose retries were used up."""

    seconds: float
    images: int
    missing: int
    lost_nodes: int
    pods: int
    most_attempts: int
    gpu_time: GpuTime


def constant_losses(share: float, seed: int) -> Lifetimes:
    """Lifetimes of nodes of which this share is lost in an hour, however old they are."""
    if not share:
        return lambda: math.inf
    rate = -math.log1p(-share) / SECONDS_PER_HOUR
    generator = random.Random(seed)  # noqa: S311  # nothing is kept secret by it
    return partial(generator.expovariate, rate)


def simulate_run(
    sharding: Sharding, fleet: Fleet, retries: Retries, workers: int, lifetimes: Lifetimes
) -> SimulatedRun:
    """Play a run through, with as many workers in a pod as it has GPUs."""
    loop = _EventLoop(sharding, fleet, retries, workers, lifetimes)
    return loop.play()


@dataclass(slots=True, eq=False)
class _Node:
    """A place for one pod. Until a pod needs it, and after it was lost, there is no machine."""

    is_up: bool = False
    lives: int = 0
    idle_since: float = 0.0
    pod: "_Pod | None" = None


@dataclass(frozen=True, slots=True)
class _UnitWork:
    """What a worker is at, and since when."""

    unit: WorkUnit
    start: float


@dataclass(frozen=True, slots=True)
class _MissingPart:
    """A part of a shard: its number, its images, and the seconds that a GPU draws them in."""

    number: int
    images: int
    seconds: float


@dataclass(slots=True, eq=False)
class _Pod:
    """The shards of one pod, over all its attempts. `drawn` is of the present one, in seconds."""

    number: int
    shards: range
    committed: set[tuple[int, int]] = field(default_factory=set)
    attempts: int = 0
    queue: WorkQueue | None = None
    started: float = 0.0
    drawn: float = 0.0
    work: dict[int, _UnitWork] = field(default_factory=dict)

    def __lt__(self, other: "_Pod") -> bool:
        """Argo walks through a workflow from its first shard: retried ones go first."""
        return self.number < other.number


class _EventLoop:
    """The events that are to come, and everything that they change."""

    def __init__(
        self,
        sharding: Sharding,
        fleet: Fleet,
        retries: Retries,
        workers: int,
        lifetimes: Lifetimes,
    ) -> None:
        self._sharding = sharding
        self._fleet = fleet
        self._retries = retries
        self._workers = workers
        self._lifetimes = lifetimes
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._next_creation = 0.0
        self._waiting: list[_Pod] = []
        self._free_nodes = [_Node() for _ in range(max(1, fleet.gpus // workers))]
        self._nodes = tuple(self._free_nodes)
        self._workflows = self._split_workflows()
        self._unfinished_pods = 0
        self._time = GpuTime()
        self._images = 0
        self._missing = 0
        self._lost_nodes = 0
        self._attempts = 0
        self._most_attempts = 0

    def play(self) -> SimulatedRun:
        """Let everything happen."""
        self._start_workflow()
        while self._unfinished_pods or self._workflows:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        for node in self._nodes:
            if node.is_up:
                self._add_idle(self._fleet.idle_seconds)
        return SimulatedRun(
            seconds=self._now,
            images=self._images,
            missing=self._missing,
            lost_nodes=self._lost_nodes,
            pods=self._attempts,
            most_attempts=self._most_attempts,
            gpu_time=self._time,
        )

    # Workflows and their pods.

    def _split_workflows(self) -> deque[range]:
        """The pods of each workflow, one workflow after the other."""
        pods = split_pods(len(self._sharding.shard_images), self._workers).pods
        workflows: deque[range] = deque()
        for first in range(0, pods, MAX_PODS):
            end = min(pods, first + MAX_PODS)
            workflows.append(range(first, end))
        return workflows

    def _start_workflow(self) -> None:
        if not self._workflows:
            return  # a run without images
        numbers = self._workflows.popleft()
        self._unfinished_pods = len(numbers)
        shard_count = len(self._sharding.shard_images)
        for number in numbers:
            first = number * self._workers
            end = min(shard_count, first + self._workers)
            pod = _Pod(number, range(first, end))
            self._waiting.append(pod)
        heapq.heapify(self._waiting)
        self._assign_nodes()

    def _assign_nodes(self) -> None:
        """Create pods for the nodes that are free, no faster than Argo's controller does."""
        while self._waiting and self._free_nodes:
            pod = heapq.heappop(self._waiting)
            node = self._free_nodes.pop()
            creation = max(self._now, self._next_creation)
            self._next_creation = creation + 1 / self._fleet.pods_per_second
            self._at(creation, partial(self._place, pod, node))

    def _place(self, pod: _Pod, node: _Node) -> None:
        """Start a pod on its node, or wait for a machine."""
        if node.is_up:
            idle = self._now - node.idle_since
            self._add_idle(min(idle, self._fleet.idle_seconds))
            if idle <= self._fleet.idle_seconds:
                self._start_pod(pod, node)
                return
            node.is_up = False
        self._time.starting += self._fleet.node_seconds * self._workers
        ready = self._now + self._fleet.node_seconds
        self._at(ready, partial(self._start_node, pod, node))

    def _start_node(self, pod: _Pod, node: _Node) -> None:
        node.is_up = True
        node.lives += 1
        lifetime = self._lifetimes()
        if lifetime < math.inf:
            loss = self._now + lifetime
            self._at(loss, partial(self._lose_node, node, node.lives))
        self._start_pod(pod, node)

    def _start_pod(self, pod: _Pod, node: _Node) -> None:
        node.pod = pod
        pod.attempts += 1
        pod.started = self._now
        pod.drawn = 0.0
        pod.queue = WorkQueue(self._sharding, pod.shards, self._workers)
        self._attempts += 1
        self._most_attempts = max(self._most_attempts, pod.attempts)
        loaded = self._now + self._fleet.load_seconds
        self._at(loaded, partial(self._start_workers, pod, node, pod.attempts))

    # Drawing.

    def _start_workers(self, pod: _Pod, node: _Node, attempt: int) -> None:
        if node.pod is not pod or pod.attempts != attempt:
            return  # the node was lost meanwhile
        for worker in range(self._workers):
            self._take_unit(pod, node, worker)

    def _take_unit(self, pod: _Pod, node: _Node, worker: int) -> None:
        """Give a worker its next parts; the last one that finds none ends the pod."""
        unit = pod.queue.take() if pod.queue is not None else None
        if unit is not None:
            pod.work[worker] = _UnitWork(unit, self._now)
            seconds = sum(part.seconds for part in self._missing_parts(pod, unit))
            end = self._now + seconds
            self._at(end, partial(self._finish_unit, pod, node, worker, unit))
        elif not pod.work:
            self._leave_node(pod, node)
            self._end_pod(pod, missing=0)

    def _finish_unit(self, pod: _Pod, node: _Node, worker: int, unit: WorkUnit) -> None:
        work = pod.work.get(worker)
        if work is None or work.unit is not unit:
            return  # the node was lost meanwhile
        self._commit_until(pod, worker)
        self._take_unit(pod, node, worker)

    def _missing_parts(self, pod: _Pod, unit: WorkUnit) -> Iterator[_MissingPart]:
        """The parts of a unit that are not committed yet."""
        part_images = self._sharding.part_images
        shard_images = self._sharding.shard_images[unit.shard]
        for number in range(unit.first_part, unit.end_part):
            if (unit.shard, number) in pod.committed:
                continue
            images = min(part_images, shard_images - number * part_images)
            yield _MissingPart(number, images, images * self._fleet.seconds_per_image)

    def _commit_until(self, pod: _Pod, worker: int) -> float:
        """Commit what a worker has drawn of its unit by now; return the seconds of the rest."""
        work = pod.work.pop(worker)
        elapsed = self._now - work.start
        for part in list(self._missing_parts(pod, work.unit)):
            if part.seconds > elapsed + ROUNDING_SECONDS:
                break
            elapsed -= part.seconds
            pod.drawn += part.seconds
            pod.committed.add((work.unit.shard, part.number))
        return max(0.0, elapsed)

    # Losses and ends.

    def _lose_node(self, node: _Node, life: int) -> None:
        """A node is gone; Argo retries its pod elsewhere, if it may."""
        idle = self._now - node.idle_since
        was_removed = node.pod is None and idle > self._fleet.idle_seconds
        if not node.is_up or node.lives != life or was_removed:
            return

        self._lost_nodes += 1
        pod = node.pod
        if pod is None:
            self._add_idle(idle)
            node.is_up = False
            return
        repeated = 0.0
        for worker in list(pod.work):
            repeated += self._commit_until(pod, worker)
        self._leave_node(pod, node, repeated)
        node.is_up = False
        if pod.attempts > self._retries.limit:
            self._end_pod(pod, missing=self._uncommitted_images(pod))
            return
        wait = retry_wait(self._retries.limit, pod.attempts)
        retry = self._now + self._fleet.detection_seconds + wait
        self._at(retry, partial(self._retry, pod))

    def _retry(self, pod: _Pod) -> None:
        heapq.heappush(self._waiting, pod)
        self._assign_nodes()

    def _leave_node(self, pod: _Pod, node: _Node, repeated: float = 0.0) -> None:
        """Account for the time that a pod had its node, and free the node."""
        seconds = self._now - pod.started
        gpu_seconds = seconds * self._workers
        loading = min(self._fleet.load_seconds, seconds) * self._workers
        waiting = gpu_seconds - loading - pod.drawn - repeated
        self._time.loading += loading
        self._time.drawing += pod.drawn
        self._time.repeated += repeated
        self._time.idle += max(0.0, waiting)
        node.pod = None
        node.idle_since = self._now
        self._free_nodes.append(node)
        self._assign_nodes()

    def _end_pod(self, pod: _Pod, missing: int) -> None:
        """A pod is done, or given up. After the last one of a workflow comes the next workflow."""
        planned = sum(self._sharding.shard_images[shard] for shard in pod.shards)
        self._images += planned - missing
        self._missing += missing
        pod.committed.clear()
        self._unfinished_pods -= 1
        if not self._unfinished_pods and self._workflows:
            self._at(self._now + CHILD_SECONDS, self._start_workflow)

    def _uncommitted_images(self, pod: _Pod) -> int:
        missing = 0
        for shard in pod.shards:
            whole_shard = WorkUnit(shard, 0, self._sharding.part_count(shard))
            missing += sum(part.images for part in self._missing_parts(pod, whole_shard))
        return missing

    def _add_idle(self, seconds: float) -> None:
        """A whole node was idle."""
        self._time.idle += seconds * self._workers

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (time, self._scheduled, happen))
