"""A stage of the pod's pipeline: an iterator that runs ahead of its consumer, in a thread, by a bounded distance."""

import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.1


@dataclass(slots=True)
class Waits:
    """Seconds that a stage's output queue made others wait.

    `full` is high where what follows is slow, `empty` where the stage itself is.
    """

    full: float = 0.0
    empty: float = 0.0


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None = None


@dataclass(slots=True)
class _Line(Generic[T]):
    queue: "Queue[T | _End]"
    closed: threading.Event = field(default_factory=threading.Event)


def ahead(items: Iterator[T], depth: int, waits: Waits) -> Generator[T]:
    """Yield what `items` yields, made in a thread that is at most `depth` items ahead.

    What `items` raises is raised here, after everything that came before it. Closing stops the thread at its
    next item and waits for it; a consumer that may leave early must close.
    """
    line: _Line[T] = _Line(Queue(depth))
    thread = threading.Thread(target=_produce, args=(items, line, waits), daemon=True)
    thread.start()
    try:
        while not isinstance(item := _timed_get(line, waits), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        line.closed.set()
        thread.join()


def _produce(items: Iterator[T], line: _Line[T], waits: Waits) -> None:
    try:
        for item in items:
            if not _put(item, line, waits):
                return
        _put(_End(), line, waits)
    except BaseException as error:  # noqa: BLE001  # raised again where it can be handled: in the consumer
        _put(_End(error), line, waits)
    finally:
        if isinstance(items, Generator):
            items.close()


def _put(item: T | _End, line: _Line[T], waits: Waits) -> bool:
    """Hand over an item; False where nobody wants it any more."""
    started = time.perf_counter()
    try:
        while not line.closed.is_set():
            try:
                line.queue.put(item, timeout=POLL_SECONDS)
            except Full:
                continue
            return True
        return False
    finally:
        waits.full += time.perf_counter() - started


def _timed_get(line: _Line[T], waits: Waits) -> T | _End:
    started = time.perf_counter()
    try:
        while True:
            try:
                # A short wait, so that signals reach the main thread between two of them.
                return line.queue.get(timeout=POLL_SECONDS)
            except Empty:
                continue
    finally:
        waits.empty += time.perf_counter() - started
