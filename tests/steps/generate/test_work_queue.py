"""Units of work: every part once, small ones at the end, and lost ones again, but not forever."""

from types import SimpleNamespace
from typing import cast

from imagekiln.steps.generate.work_queue import MAX_ATTEMPTS, WorkQueue, WorkUnit
from imagekiln.steps.runs.plan import Plan


def _queue(parts: list[int], workers: int) -> WorkQueue:
    """The queue of a run whose shards have so many parts."""
    plan = cast("Plan", SimpleNamespace(part_count=lambda shard: parts[shard]))
    return WorkQueue(plan, range(len(parts)), workers)


def _take_all(queue: WorkQueue) -> list[WorkUnit]:
    return list(iter(queue.take, None))


def test_every_part_is_in_one_unit() -> None:
    for parts in ([1], [7], [32] * 5, [3, 1, 40]):
        units = _take_all(_queue(parts, workers=4))
        parts_of_units = [
            (unit.shard, part) for unit in units for part in range(*unit.parts.indices(99))
        ]
        assert parts_of_units == [
            (shard, part) for shard, count in enumerate(parts) for part in range(count)
        ]


def test_workers_take_whole_shards_first_and_single_parts_at_the_end() -> None:
    units = _take_all(_queue([32] * 20, workers=4))
    sizes = [unit.end_part - unit.first_part for unit in units]
    assert sizes[:12] == [32] * 12
    assert sizes[-4:] == [1] * 4


def test_single_shard_is_enough_work_for_all_workers() -> None:
    assert len(_take_all(_queue([32], workers=8))) >= 8


def test_unit_of_a_lost_worker_is_the_next_and_is_given_up_in_the_end() -> None:
    queue = _queue([2, 2], workers=1)
    unit = queue.take()
    assert unit is not None
    for _ in range(MAX_ATTEMPTS - 1):
        queue.put_back(unit)
        assert queue.take() == unit
    queue.put_back(unit)
    assert queue.given_up == [unit]
    assert unit not in _take_all(queue)
    assert queue.is_empty
