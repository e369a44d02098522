"""Histories of processes that are frozen, killed or at work at once; and a search for more."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, TryAgain
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import part_key, shard_key
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from tests.interleaving import frozen, interleaving
from tests.protocol import check_protocol
from tests.runs import begin_round, fill, not_ok, planned


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PlanResult]:
    """A run with all its parts, whose processes can be frozen."""
    with interleaving(tmp_path, lambda *_: None):
        planned_run = planned(tmp_path, str(tmp_path / "out"))
        fill(planned_run)
        yield planned_run


def test_aggregation_frozen_while_another_finishes_the_run_writes_nothing_more(
    run: PlanResult,
) -> None:
    store = open_store(run.uri)
    part = store.read(part_key(1, 1))
    store.remove(part_key(1, 1))
    zombie = frozen(lambda: aggregate(run.uri), "read", shard_key(2))
    store.create(part_key(1, 1), part)
    aggregate(run.uri)
    zombie.finish()
    assert isinstance(zombie.error, TryAgain)
    assert verify(run.uri).ok == 20


def test_garbage_collection_frozen_while_the_run_is_finished_leaves_it(run: PlanResult) -> None:
    output = str(Path(run.uri).parent)
    zombie = frozen(lambda: gc(output, 0, remove=True), "read", "turns/000000.json")
    aggregate(run.uri)
    zombie.finish()
    assert isinstance(zombie.error, TryAgain)
    assert verify(run.uri).ok == 20


def test_round_that_two_plan_at_once_in_different_ways_has_the_shards_of_its_plan(
    run: PlanResult,
) -> None:
    store = open_store(run.uri)
    store.remove(part_key(0, 0))
    store.remove(part_key(2, 0))
    with pytest.raises(Incomplete):
        aggregate(run.uri)
    zombie = frozen(lambda: plan_next_round(store, run.plan), "read", "retry-1/turns/000000.json")
    fill(run, {0: not_ok(0)})
    with suppress(Incomplete):
        aggregate(run.uri)
    retry_round = begin_round(run)
    zombie.finish()
    assert isinstance(zombie.error, TryAgain)
    (part,) = read_shard(retry_round.store, retry_round.plan, 0)
    assert part.rows.num_rows == 1


@pytest.mark.parametrize("seed", range(8))  # for several workers
def test_no_history_of_processes_breaks_a_promise(seed: int) -> None:
    check_protocol(examples=5, seed=seed)
