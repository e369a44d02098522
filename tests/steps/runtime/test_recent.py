"""Answers that are kept for a while."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from imagekiln.steps.runtime.concurrency import SingleFlightCache


def test_an_answer_is_worked_out_once_however_many_ask() -> None:
    asked: list[int] = []

    def slow(number: int) -> int:
        asked.append(number)
        time.sleep(0.02)
        return number * 2

    recent = SingleFlightCache(slow, 2)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(recent, [3] * 8)) == [6] * 8
    assert asked == [3]


def test_only_the_last_ones_are_kept() -> None:
    asked: list[int] = []
    recent = SingleFlightCache[int, None](asked.append, 2)
    for number in (1, 2, 1, 3, 1, 2):
        recent(number)
    assert asked == [1, 2, 3, 2], "1 was asked for again and again, so it stays; 2 had to go"


def test_a_failure_reaches_everybody_who_waits() -> None:
    gate = threading.Event()

    def fails(_: int) -> int:
        gate.wait(5)
        raise ValueError("no")

    recent = SingleFlightCache(fails, 1)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(recent, 1) for _ in range(2)]
        gate.set()
        for answer in answers:
            with pytest.raises(ValueError, match="no"):
                answer.result()
