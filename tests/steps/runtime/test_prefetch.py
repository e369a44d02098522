"""Stages in threads of their own."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from imagekiln.steps.runtime.prefetch import QueueWaits, prefetch
from tests.threads import threads

SOON = 60.0  # seconds in which what must happen at once has happened even on a busy machine


class Counter:
    """Counts up to `end`, and knows how far it came and whether it was closed."""

    def __init__(self, end: int, pause: float = 0.0, fault: Exception | None = None) -> None:
        self.count = 0
        self.closed = False
        self._end = end
        self._pause = pause
        self._fault = fault

    def items(self) -> Iterator[int]:
        try:
            for number in range(self._end):
                time.sleep(self._pause)
                self.count += 1
                yield number
            if self._fault:
                raise self._fault
        finally:
            self.closed = True


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + SOON
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_an_error_comes_after_every_item_before_it() -> None:
    stage = prefetch(Counter(3, fault=LookupError("lost")).items(), 1, QueueWaits())
    assert [next(stage), next(stage), next(stage)] == [0, 1, 2]
    with pytest.raises(LookupError, match="lost"):
        next(stage)


def test_consumer_that_stops_early_stops_the_producer_and_leaves_no_thread() -> None:
    before = threads()
    counter = Counter(1000)
    with closing(prefetch(counter.items(), 2, QueueWaits())) as stage:
        next(stage)
        assert threads() - before
    assert counter.closed
    assert counter.count < 1000
    assert not threads() - before


def test_consumer_that_fails_closes_every_stage_before_it() -> None:
    before = threads()
    first = Counter(1000)

    def fails_at_the_third() -> None:
        with closing(prefetch(first.items(), 1, QueueWaits())) as one:
            doubled = (2 * number for number in one)
            with closing(prefetch(doubled, 1, QueueWaits())) as two:
                for number in two:
                    if number == 4:
                        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fails_at_the_third()
    assert first.closed
    assert not threads() - before
