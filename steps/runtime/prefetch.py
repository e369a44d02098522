"""A stage of the pod's pipeline: an iterator that runs ahead of its consumer, in a thread, by a bounded distance."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.1


@dataclass(slots=True)
class QueueWaits:
    """Seconds that a stage's output queue made others wait.

    `full` is high where what follows is slow, `empty` where the stage itself is.
    """

    full_seconds: float = 0.0
    empty_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _EndOfStream:
    error: BaseException | None = None


@dataclass(slots=True)
class _Channel(Generic[T]):
    queue: "Queue[T | _EndOfStream]"
    closed: threading.Event = field(default_factory=threading.Event)


def prefetch(items: Iterator[T], depth: int, waits: QueueWaits) -> Generator[T]:
    """Yield what `items` yields, made in a thread that is at most `depth` items ahead.

    What `items` raises is raised here, after everything that came before it. Closing stops the thread at its
    next item and waits for it; a consumer that may leave early must close.
    """
    line: _Channel[T] = _Channel(Queue(depth))
    thread = threading.Thread(target=_run_producer, args=(items, line, waits), daemon=True)
    thread.start()
    try:
        while not isinstance(item := _get(line, waits), _EndOfStream):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        line.closed.set()
        thread.join()


def consume_in_thread(
    items: Iterator[T], consume: Callable[[Iterator[T]], None], depth: int, waits: QueueWaits
) -> None:
    """Make `items` in this thread while `consume` takes them in another, at most `depth` behind.

    For what must not leave the main thread: in any other, PyTorch on a CPU runs at two thirds of its speed.
    What was made is consumed before what `items` raises is raised; what `consume` raises ends the making.
    """
    line: _Channel[T] = _Channel(Queue(depth))
    failed: list[BaseException] = []
    thread = threading.Thread(
        target=_run_consumer, args=(consume, line, waits, failed), daemon=True
    )
    thread.start()
    try:
        for item in items:
            if not _put(item, line, waits):
                break
    finally:
        _put(_EndOfStream(), line, waits)
        thread.join()
        if isinstance(items, Generator):
            items.close()
    if failed:
        raise failed[0]


def _run_consumer(
    consume: Callable[[Iterator[T]], None],
    line: _Channel[T],
    waits: QueueWaits,
    failed: list[BaseException],
) -> None:
    try:
        consume(_iter_channel(line, waits))
    except BaseException as error:  # noqa: BLE001  # raised again where it can be handled: in the main thread
        failed.append(error)
    finally:
        line.closed.set()


def _iter_channel(line: _Channel[T], waits: QueueWaits) -> Iterator[T]:
    while not isinstance(item := _get(line, waits), _EndOfStream):
        yield item


def _run_producer(items: Iterator[T], line: _Channel[T], waits: QueueWaits) -> None:
    try:
        for item in items:
            if not _put(item, line, waits):
                return
        _put(_EndOfStream(), line, waits)
    except BaseException as error:  # noqa: BLE001  # raised again where it can be handled: in the consumer
        _put(_EndOfStream(error), line, waits)
    finally:
        if isinstance(items, Generator):
            items.close()


def _put(item: T | _EndOfStream, line: _Channel[T], waits: QueueWaits) -> bool:
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
        waits.full_seconds += time.perf_counter() - started


def _get(line: _Channel[T], waits: QueueWaits) -> T | _EndOfStream:
    started = time.perf_counter()
    try:
        while True:
            try:
                # A short wait, so that signals reach the main thread between two of them.
                return line.queue.get(timeout=POLL_SECONDS)
            except Empty:
                continue
    finally:
        waits.empty_seconds += time.perf_counter() - started
