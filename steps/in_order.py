"""The same work for many numbers, a few at a time, and the results one by one."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

DEFAULT_WORKERS = 8
T = TypeVar("T")


def map_ordered(work: Callable[[int], T], count: int, workers: int = DEFAULT_WORKERS) -> Iterator[T]:
    """What `work` gives for each number, in order, some of them at a time and no more in memory than that."""
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[T]] = deque()
        for number in range(count):
            pending.append(pool.submit(work, number))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
