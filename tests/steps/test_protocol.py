"""Histories of processes that are frozen, killed or at work at once; and a search for more."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, TryAgain
from imagekiln.steps.generate.step import generate_shard
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.keys import part_key, shard_key
from imagekiln.steps.runs.rounds import Round, open_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.interleaving import frozen, interleaving
from tests.nights import PROMPTS, Setting, finish_night, painter_of, without_reports
from tests.protocol import check_protocol
from tests.runs import begin_round, fill, not_ok, planned
from tests.wholeness import made_ids


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


def test_quick_search_for_a_history_that_breaks_a_promise() -> None:
    check_protocol(examples=4, seed=7)


PARTS = st.builds(slice, st.integers(0, 2), st.integers(1, 3))
COMMANDS = st.tuples(st.sampled_from(["generate", "retry", "aggregate"]), st.integers(0, 2), PARTS)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.lists(COMMANDS, min_size=3, max_size=8))
def test_commands_one_after_another_make_no_image_twice(
    commands: list[tuple[str, int, slice]],
) -> None:
    setting = Setting(2, "parquet", 0.3, skip_existing=False, part_images=2, shard_images=4)
    with without_reports(), TemporaryDirectory() as name:
        job = setting.job(Path(name), 1)
        uri = make_plan(job).uri
        for command, shard, parts in commands:
            with suppress(Incomplete):
                obey(uri, command, shard, parts)
        require_each_made_once(uri)
        finish_night(job)
        assert require_each_made_once(uri) == len(PROMPTS) - 1  # one always fails
        verify(uri)


def obey(uri: str, command: str, shard: int, parts: slice) -> None:
    """Aggregate, or make some parts of a shard of the run or of the next round."""
    if command == "aggregate":
        aggregate(uri)
        return
    run = open_run(uri)
    planned_run: Round | None = Round(run.store, run.plan)
    if command == "retry":
        planned_run = plan_next_round(run.store, run.plan)
    if planned_run is not None:
        number = shard % len(planned_run.plan.shards)
        store, plan = planned_run.store, planned_run.plan
        make = partial(painter_of, plan)
        generate_shard(store, plan, number, make, NoProgress(), Stop(), parts=parts)


def require_each_made_once(uri: str) -> int:
    """The number of images that are ok in a part; fails where one is so in two."""
    made = list(made_ids(open_run(uri)))
    assert len(made) == len(set(made))
    return len(made)
