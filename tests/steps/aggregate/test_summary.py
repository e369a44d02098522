"""The sums of a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.image_table import open_image_table
from imagekiln.steps.aggregate.reconcile import reconcile_shard
from imagekiln.steps.aggregate.summary import (
    MAX_LISTED,
    SUMMARY_ADAPTER,
    AcceptancePolicy,
    Summary,
    SummaryBuilder,
)
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.stats import ShardStats, StageSeconds
from imagekiln.steps.storage import open_store
from tests.runs import PROMPTS, encoded, fill, not_ok, planned


@pytest.fixture
def planned_run(tmp_path: Path) -> PlanResult:
    """A planned run of two shards with 8 and 2 images, and rows that made no image."""
    rows = [*PROMPTS[:10], {"prompt": "", "id": "empty"}, PROMPTS[3]]
    return planned(tmp_path, str(tmp_path / "out"), rows, limits={"rejected_share": 1.0})


def _summary(planned_run: PlanResult, *stats: ShardStats) -> Summary:
    store, plan = open_store(planned_run.uri), planned_run.plan
    shards = [reconcile_shard(store, plan, number) for number in range(len(plan.shards))]
    with open_image_table(plan.job) as table:
        builder = SummaryBuilder(plan, table)
        for shard in shards:
            builder.add(shard)
        policy = AcceptancePolicy(0.0, (), plan.job.price_per_hour)
        return builder.build(lambda number: shards[number].manifest, policy, stats)


def _shard_stats(shard: int, images: int, device: str, *seconds: float) -> ShardStats:
    return ShardStats(shard, 1, images, 1, 4, device, StageSeconds(*seconds))


def test_every_planned_image_is_counted_once(planned_run: PlanResult) -> None:
    faults = {6: not_ok(6, "blank", "one colour"), 9: not_ok(9, "filtered", "refused")}
    fill(planned_run, {1: not_ok(1), **faults})
    result = _summary(planned_run)
    assert (result.images, result.ok, result.missing) == (10, 7, 0)
    assert result.statuses == {"blank": 1, "failed": 1, "filtered": 1, "ok": 7}
    assert (result.rows, result.rejected_rows, result.duplicate_images) == (12, 1, 1)
    sizes = [len(encoded(place % 4).content or b"") for place in (0, 2, 3, 4, 5, 7, 8)]
    assert result.bytes == sum(sizes)


def test_causes_come_by_how_often_they_happened(planned_run: PlanResult) -> None:
    faults = {place: not_ok(place, error="KeyError: 'a'\nmore of it") for place in (1, 4, 8)}
    fill(planned_run, {**faults, 5: not_ok(5, error=f"OSError: {'x' * 300}")})
    result = _summary(planned_run).failures
    assert (result[0].status, result[0].error, result[0].images) == ("failed", "KeyError: 'a'", 3)
    assert (result[1].images, len(result[1].error)) == (1, 200)


def test_lists_stay_short_however_long_the_run(tmp_path: Path) -> None:
    rows = [{"prompt": f"number {place}"} for place in range(MAX_LISTED + 20)]
    planned_run = planned(
        tmp_path, str(tmp_path / "out"), rows, batch={"images": 1}, part={"images": 1}
    )
    result = _summary(planned_run)
    assert (len(result.missing_parts), result.missing_parts_count) == (MAX_LISTED, MAX_LISTED + 20)
    fill(
        planned_run,
        {place: not_ok(place, error=f"number {place}") for place in range(MAX_LISTED + 20)},
    )
    assert len(_summary(planned_run).failures) == MAX_LISTED


def test_the_use_of_devices_is_summed(planned_run: PlanResult) -> None:
    stats = [
        replace(_shard_stats(place, 4, "H100", 100.0), busy_share=busy)
        for place, busy in enumerate((0.5, 1.0))
    ]
    assert _summary(planned_run, *stats).busy_share == 0.75
    silent = _summary(planned_run)
    assert (silent.device_hours, silent.images_per_second, silent.devices) == (0.0, 0.0, ())


def test_a_summary_comes_back_from_its_json(planned_run: PlanResult) -> None:
    fill(planned_run, {1: not_ok(1)})
    result = _summary(
        planned_run, replace(_shard_stats(0, 8, "H100", 1.0), busy_share=0.5, peak_memory=10)
    )
    assert SUMMARY_ADAPTER.validate_json(SUMMARY_ADAPTER.dump_json(result)) == result
