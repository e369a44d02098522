from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import sleep

import pytest

from imagekiln.steps.runtime.concurrency import ByteBudget


def test_threads_never_hold_more_than_there_is() -> None:
    room, lock, held, most = ByteBudget(10), Lock(), 0, 0

    def work(size: int) -> None:
        nonlocal held, most
        with room.reserve(size):
            with lock:
                held += size
                most = max(most, held)
            sleep(0.001)
            with lock:
                held -= size

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 4, 5, 6] * 20))
    assert held == 0
    assert 6 < most <= 10


def test_who_needs_more_than_there_is_has_it_alone() -> None:
    room, inside = ByteBudget(10), 0

    def work(size: int) -> int:
        nonlocal inside
        with room.reserve(size):
            inside += 1
            sleep(0.002)
            seen, inside = inside, inside - 1
        return seen

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, [11, 1000] * 8)) == {1}


def test_room_is_free_again_after_a_failure() -> None:
    room = ByteBudget(10)
    with pytest.raises(LookupError), room.reserve(10):
        raise LookupError
    with room.reserve(10):
        pass
