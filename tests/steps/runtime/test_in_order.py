import threading
import time

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runtime.concurrency import DEFAULT_WORKERS, map_ordered
from tests.threads import threads


def test_answers_come_in_order_however_long_each_takes() -> None:
    def slow_at_first(number: int) -> int:
        time.sleep(0.05 if number == 0 else 0.0)
        return number

    assert list(map_ordered(slow_at_first, 30)) == list(range(30))


def test_only_so_many_answers_are_held_at_a_time() -> None:
    begun: list[int] = []
    answers = map_ordered(lambda number: begun.append(number), 100)
    next(answers)
    time.sleep(0.05)
    assert len(begun) <= DEFAULT_WORKERS + 1
    answers.close()  # type: ignore[attr-defined]  # a generator


def test_a_failure_comes_out_and_leaves_no_thread_behind() -> None:
    before = threads()

    def fails(number: int) -> int:
        if number == 3:
            raise TryAgain("storage did not answer")
        return number

    found: list[int] = []
    with pytest.raises(TryAgain):
        found.extend(map_ordered(fails, 100))
    assert found == [0, 1, 2]
    assert not threads() - before


def test_several_are_done_at_once_and_no_more() -> None:
    together = threading.Barrier(3)
    assert len(list(map_ordered(lambda _: together.wait(timeout=30), 6, workers=3))) == 6
    begun: list[int] = []
    answers = map_ordered(begun.append, 100, workers=3)
    next(answers)
    time.sleep(0.05)
    assert len(begun) <= 4
    answers.close()  # type: ignore[attr-defined]  # a generator
