"""Answers that neighbours ask for too: the last few are kept, and each is worked out once, whoever asks first."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Generic, TypeVar

DEFAULT_WORKERS = 8
T = TypeVar("T")


def map_ordered(
    work: Callable[[int], T], count: int, workers: int = DEFAULT_WORKERS
) -> Iterator[T]:
    """What `work` gives for each number, in order, some of them at a time and no more in memory than that."""
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[T]] = deque()
        for number in range(count):
            pending.append(pool.submit(work, number))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


K = TypeVar("K")
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """A slow function whose last `most` answers are at hand. For any number of threads."""

    def __init__(self, work: Callable[[K], V], most: int) -> None:
        """Begin with none."""
        self._work, self._most = work, most
        self._held: dict[K, Future[V]] = {}
        self._lock = Lock()

    def __call__(self, key: K) -> V:
        """What `work` gives for `key`. Raises what it raises, to all who asked."""
        with self._lock:
            answer = self._held.get(key)
            if waits := answer is not None:
                self._held[key] = self._held.pop(key)
            else:
                answer = self._held[key] = Future()
                for oldest in list(self._held)[: -self._most]:
                    del self._held[oldest]
        if not waits:
            try:
                answer.set_result(self._work(key))
            except BaseException as error:  # noqa: BLE001  # it comes out below, here and for whoever waits
                answer.set_exception(error)
        return answer.result()


class ByteBudget:
    """A number of bytes that threads share. Who needs more than there is in all has it alone."""

    def __init__(self, size: int) -> None:
        """Begin with all of it free."""
        self._size = self._free = size
        self._changed = Condition()

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Hold so many bytes inside the block; waits until they are free."""
        held = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: held <= self._free)
            self._free -= held
        try:
            yield
        finally:
            with self._changed:
                self._free += held
                self._changed.notify_all()
