"""Units of work: every part once, small ones at the end, and lost ones again, but not forever."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

from imagekiln.steps.generate.work_queue import MAX_ATTEMPTS, WorkQueue, WorkUnit, split_work
from imagekiln.steps.runs.plan import Plan


def _units(parts: list[int], workers: int) -> list[WorkUnit]:
    """The units of a run whose shards have so many parts."""
    plan = cast("Plan", SimpleNamespace(part_count=lambda shard: parts[shard]))
    return split_work(plan, range(len(parts)), workers)


def test_every_part_is_in_one_unit() -> None:
    for parts in ([1], [7], [32] * 5, [3, 1, 40]):
        units = _units(parts, workers=4)
        parts_of_units = [
            (unit.shard, part) for unit in units for part in range(*unit.parts.indices(99))
        ]
        assert parts_of_units == [
            (shard, part) for shard, count in enumerate(parts) for part in range(count)
        ]


def test_workers_take_whole_shards_first_and_single_parts_at_the_end() -> None:
    units = _units([32] * 20, workers=4)
    sizes = [unit.end_part - unit.first_part for unit in units]
    assert sizes[:12] == [32] * 12
    assert sizes[-4:] == [1] * 4


def test_single_shard_is_enough_work_for_all_workers() -> None:
    assert len(_units([32], workers=8)) >= 8


def test_unit_of_a_lost_worker_is_the_next_and_is_given_up_in_the_end() -> None:
    units = _units([2, 2], workers=1)
    queue = WorkQueue(units)
    unit = queue.take()
    assert unit == units[0]
    for _ in range(MAX_ATTEMPTS - 1):
        queue.put_back(unit)
        assert queue.take() == unit
    queue.put_back(unit)
    for other in units[1:]:
        assert queue.take() == other
        queue.finish()
    assert queue.take() is None
    assert not queue.is_complete


def test_worker_without_a_unit_waits_for_those_that_may_come_back() -> None:
    (unit,) = _units([1], workers=1)
    queue = WorkQueue([unit])
    queue.take()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(queue.take)
        queue.put_back(unit)
        assert waiting.result(60) == unit
    queue.finish()
    assert queue.is_complete
