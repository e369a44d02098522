"""Pipeline stages in threads, each a bounded number of items ahead of the next."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from queue import Full, Queue
from typing import Generic, TypeVar

from imagekiln.steps.runtime.metrics import QUEUE_ITEMS

T = TypeVar("T")
POLL_SECONDS = 0.1


@dataclass(slots=True)
class QueueWaits:
    """Seconds that other stages waited for a stage's output queue.

    `full_seconds` is high if the next stage is slow, `empty_seconds` if the stage itself is. `name`
    is the queue's name in metrics, if it has any.
    """

    full_seconds: float = 0.0
    empty_seconds: float = 0.0
    name: str = ""


def prefetch(items: Iterator[T], depth: int, waits: QueueWaits) -> Generator[T]:
    """Yield the items of an iterator that runs in a thread, at most `depth` items ahead.

    An error of `items` is raised after all items before it. Closing stops the thread at its next
    item and waits for it. A consumer that may stop early must close.
    """
    channel: _Channel[T] = _Channel(depth, waits)
    thread = threading.Thread(target=_produce, args=(items, channel), daemon=True)
    thread.start()
    try:
        yield from channel.items()
    finally:
        channel.close()
        thread.join()


def consume_in_thread(
    items: Iterator[T], consume: Callable[[Iterator[T]], None], depth: int, waits: QueueWaits
) -> None:
    """Produce `items` in this thread and consume them in another, at most `depth` items behind.

    For work that must stay in the main thread, such as PyTorch on a CPU, which reaches only two
    thirds of its speed elsewhere. An error of `items` is raised after all items are consumed. An
    error of `consume` stops the production.
    """
    channel: _Channel[T] = _Channel(depth, waits)
    errors: list[BaseException] = []
    thread = threading.Thread(target=_consume, args=(consume, channel, errors), daemon=True)
    thread.start()
    try:
        for item in items:
            if not channel.put(item):
                break
    finally:
        channel.put_end()
        thread.join()
        _close(items)
    if errors:
        raise errors[0]


@dataclass(frozen=True, slots=True)
class _EndOfStream:
    error: BaseException | None = None


class _Channel(Generic[T]):
    """A bounded queue between two threads. Either of them may close it."""

    def __init__(self, depth: int, waits: QueueWaits) -> None:
        self._queue: Queue[T | _EndOfStream] = Queue(depth)
        self._waits = waits
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop accepting items."""
        self._closed.set()

    def put(self, item: T | _EndOfStream) -> bool:
        """Put an item. Return False if the channel is closed."""
        started = time.perf_counter()
        try:
            while not self._closed.is_set():
                try:
                    self._queue.put(item, timeout=POLL_SECONDS)
                except Full:
                    continue
                self._report_size()
                return True
            return False
        finally:
            self._waits.full_seconds += time.perf_counter() - started

    def put_end(self, error: BaseException | None = None) -> None:
        """Mark the end of the items, with an error that the reader raises."""
        self.put(_EndOfStream(error))

    def items(self) -> Iterator[T]:
        """Yield the items up to the end, and raise its error."""
        while True:
            started = time.perf_counter()
            item = self._queue.get()
            self._waits.empty_seconds += time.perf_counter() - started
            self._report_size()
            if isinstance(item, _EndOfStream):
                break
            yield item
        if item.error is not None:
            raise item.error

    def _report_size(self) -> None:
        if self._waits.name:
            QUEUE_ITEMS.set(self._queue.qsize(), queue=self._waits.name)


def _produce(items: Iterator[T], channel: _Channel[T]) -> None:
    try:
        for item in items:
            if not channel.put(item):
                return
        channel.put_end()
    except BaseException as error:  # noqa: BLE001  # raised again in the consumer
        channel.put_end(error)
    finally:
        _close(items)


def _consume(
    consume: Callable[[Iterator[T]], None], channel: _Channel[T], errors: list[BaseException]
) -> None:
    try:
        consume(channel.items())
    except BaseException as error:  # noqa: BLE001  # raised again in the main thread
        errors.append(error)
    finally:
        channel.close()


def _close(items: Iterator[T]) -> None:
    """Run the `finally` blocks of a generator in this thread."""
    if isinstance(items, Generator):
        items.close()
