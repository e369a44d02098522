"""What each image has come to, over all retries."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.parts import pack_part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from tests.faults import manifests
from tests.runs import begin_retry, encoded, fill, not_ok, planned, renumbered


@pytest.fixture
def run(tmp_path: Path) -> PlanResult:
    """A run of 20 images, of which the first of each shard (of 8, 8 and 4) failed."""
    planned_run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 1})
    fill(planned_run, {place: not_ok(place) for place in (0, 8, 16)})
    aggregate(planned_run.uri)
    return planned_run


def make(run: PlanResult, plan: Plan, images: Sequence[EncodedImage]) -> None:
    """Write a retry's only part."""
    store = open_store(run.uri)
    (part,) = read_shard(store, plan, 0)
    pack_part(part, renumbered([*images])).commit(store)


def statuses(uri: str) -> list[object]:
    return [row["status"] for row in manifests(uri)]


def test_the_latest_retry_decides_about_images_that_are_not_ok(run: PlanResult) -> None:
    again = not_ok(1, error="RuntimeError: again")
    make(run, begin_retry(run), [encoded(0), again, not_ok(2, "blank")])
    done = aggregate(run.uri)
    assert (done.ok, done.statuses, done.retries) == (18, {"blank": 1, "failed": 1, "ok": 18}, 1)
    (cause, *_) = (each for each in done.failures if each.error == "RuntimeError: again")
    assert cause.images == 1
    make(run, begin_retry(run), [not_ok(0), encoded(1)])
    assert statuses(run.uri)[0] == "ok", "before it is counted, too"
    done = aggregate(run.uri)
    assert (done.ok, done.retries) == (19, 2)


def test_until_its_parts_are_there_a_retry_changes_nothing_and_the_next_command_resumes_it(
    run: PlanResult,
) -> None:
    plan = begin_retry(run)
    address = f"{run.uri}/retry-{plan.retry}"
    assert aggregate(run.uri).statuses == {"failed": 3, "ok": 17}
    assert verify(run.uri).ok == 17
    assert begin_retry(run) == plan
    with pytest.raises(Incomplete, match=rf"1 part of this retry is missing, .*r{plan.retry}-0000"):
        aggregate(address)
    assert open_run(run.uri).is_finished, "the run itself is as complete as before"
    assert not open_run(run.uri).is_complete

    make(run, plan, [not_ok(0), not_ok(1), not_ok(2)])  # late
    assert aggregate(address).ok == 17
    assert open_run(run.uri).is_complete
    assert begin_retry(run).retry > plan.retry


def test_a_part_that_is_missing_is_made_as_planned_and_in_no_retry(run: PlanResult) -> None:
    """An image is in one part that may still be made, so that it is never made twice."""
    late = planned_again(run)
    store = open_store(late.uri)
    lost = store.read(part_key(0, 1))
    store.remove(part_key(0, 1))
    with pytest.raises(Incomplete):
        aggregate(late.uri)
    plan = begin_retry(late)
    assert plan.counts.images == 3
    store.create(part_key(0, 1), lost)  # somebody makes it after all
    make(late, plan, [encoded(100 + place) for place in range(3)])
    assert aggregate(late.uri).ok == 20
    places = [str(row["part"]) for row in manifests(late.uri)]
    assert places[:5] == [
        part_key(0, 0, plan.retry),
        *[part_key(0, 0)] * 3,
        part_key(0, 1),
    ]
    assert verify(late.uri).ok == 20


def planned_again(run: PlanResult) -> PlanResult:
    """Another run of the same job, with all its parts, not aggregated."""
    output = run.plan.job.output
    late = planned(Path(output).parent, output, run_id="late", limits={"failed_share": 1})
    fill(late, {place: not_ok(place) for place in (0, 8, 16)})
    return late
