"""Thread utilities: a pool, an ordered map, a single-flight cache, a memory budget."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Condition, Lock
from typing import Generic, TypeVar

DEFAULT_WORKERS = 8
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@contextmanager
def thread_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Open a pool for generators. Closing a generator early does not wait for the threads.

    The garbage collector may close a generator in a thread that is just starting and holds the lock
    that the pool's threads need to end. Waiting for them there would deadlock.
    """
    pool = ThreadPoolExecutor(workers)
    wait = True
    try:
        yield pool
    except GeneratorExit:
        wait = False
        raise
    finally:
        pool.shutdown(wait=wait, cancel_futures=not wait)


def map_ordered(
    work: Callable[[int], T], count: int, workers: int = DEFAULT_WORKERS
) -> Generator[T]:
    """Yield the results of `work` for the numbers below `count`, in order.

    At most `workers` calls run at a time, and at most as many results wait in memory.
    """
    with thread_pool(workers) as pool:
        pending: deque[Future[T]] = deque()
        for number in range(count):
            pending.append(pool.submit(work, number))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


class SingleFlightCache(Generic[K, V]):
    """Cache of the last `most` results of a slow function.

    Concurrent calls with one key run it once.
    """

    def __init__(self, work: Callable[[K], V], most: int) -> None:
        """Start with an empty cache."""
        self._work = work
        self._lock = Lock()
        self._entry = lru_cache(most)(self._new_entry)

    def __call__(self, key: K) -> V:
        """Return the result of `work` for `key`. If it fails, the next call runs it again."""
        with self._lock:
            lock, results = self._entry(key)
        with lock:
            if not results:
                results.append(self._work(key))
            return results[0]

    def _new_entry(self, _key: K) -> tuple[Lock, list[V]]:
        return Lock(), []


class ByteBudget:
    """Budget of bytes shared by threads. A request for more than the budget gets all of it."""

    def __init__(self, size: int) -> None:
        """Start with all bytes free."""
        self._size = size
        self._free = size
        self._changed = Condition()

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Wait until this number of bytes is free, and reserve it for the block."""
        reserved = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: reserved <= self._free)
            self._free -= reserved
        try:
            yield
        finally:
            with self._changed:
                self._free += reserved
                self._changed.notify_all()
