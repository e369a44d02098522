"""Work shared by threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runtime.concurrency import (
    ByteBudget,
    SingleFlightCache,
    map_ordered,
)
from tests.threads import threads


def test_results_come_in_order_however_long_each_takes() -> None:
    def slow_at_first(number: int) -> int:
        time.sleep(0.05 if number == 0 else 0.0)
        return number

    assert list(map_ordered(slow_at_first, 30)) == list(range(30))


def test_a_failure_comes_out_and_leaves_no_thread_behind() -> None:
    before = threads()

    def fails(number: int) -> int:
        if number == 3:
            raise TryAgain("storage did not answer")
        return number

    results: list[int] = []
    with pytest.raises(TryAgain):
        results.extend(map_ordered(fails, 100))
    assert results == [0, 1, 2]
    assert not threads() - before


def test_a_result_is_computed_once_however_many_ask() -> None:
    calls: list[int] = []

    def slow(number: int) -> int:
        calls.append(number)
        time.sleep(0.02)
        return number * 2

    cache = SingleFlightCache(slow, 2)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(cache, [3] * 8)) == [6] * 8
    assert calls == [3]


def test_threads_never_reserve_more_than_there_is() -> None:
    budget = ByteBudget(10)
    lock = threading.Lock()
    reserved = 0
    most = 0

    def work(size: int) -> None:
        nonlocal reserved, most
        with budget.reserve(size):
            with lock:
                reserved += size
                most = max(most, reserved)
            time.sleep(0.001)
            with lock:
                reserved -= size

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 4, 5, 6] * 20))
    assert reserved == 0
    assert 6 < most <= 10
