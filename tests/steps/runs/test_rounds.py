"""What each image has come to, over all rounds."""

from pathlib import Path

import pytest

from imagekiln.steps.aggregate.reconcile import RunReconciler
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, Missing
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs import shard
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import SUCCESS_KEY, part_key
from imagekiln.steps.runs.parquet_format import part_to_parquet
from imagekiln.steps.runs.parts import commit_part
from imagekiln.steps.runs.rounds import Round, resolve_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import ShardStats, StageSeconds, record_stats
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.faults import manifests
from tests.runs import begun, encoded, fill, not_ok, planned


@pytest.fixture
def there(tmp_path: Path) -> PlanResult:
    """A run of 20 images, of which the first of each shard (of 8, 8 and 4) failed."""
    there = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 1})
    fill(there, {place: not_ok(place) for place in (0, 8, 16)})
    aggregate(there.uri)
    return there


def make(each: Round, *images: EncodedImage) -> None:
    """Write a round's only part."""
    (part,) = read_shard(each.store, each.plan, 0)
    commit_part(each.store, part.key, part.rows, part_to_parquet(part.rows, images))


def statuses(uri: str) -> list[object]:
    return [row["status"] for row in manifests(uri)]


def test_the_latest_round_speaks_of_what_is_not_ok(there: PlanResult) -> None:
    make(begun(there), encoded(0), not_ok(1, error="ValueError: again"), not_ok(2, "blank"))
    done = aggregate(there.uri)
    assert (done.ok, done.statuses, done.rounds) == (18, {"blank": 1, "failed": 1, "ok": 18}, 1)
    assert [each.error for each in done.failures] == ["ValueError: again", "ValueError: a fault"]
    make(begun(there), not_ok(0), encoded(1))
    assert statuses(there.uri)[0] == "ok"
    done = aggregate(there.uri)
    assert (done.ok, done.rounds) == (19, 2)


def test_an_image_that_a_round_lacks_keeps_what_was_said_before(there: PlanResult) -> None:
    each = begun(there)
    assert aggregate(there.uri).statuses == {"failed": 3, "ok": 17}
    assert not each.is_finished
    assert verify(there.uri).ok == 17


def test_what_an_unfinished_round_made_since_is_no_damage_but_work_to_finish(
    there: PlanResult,
) -> None:
    make(begun(there), encoded(0), encoded(1), encoded(2))
    with pytest.raises(Incomplete, match=r"Round 1 is not finished: retry the run again"):
        verify(there.uri)
    aggregate(there.uri)
    assert verify(there.uri).ok == 20


def test_a_round_is_finished_once_all_its_parts_are_accounted_for(there: PlanResult) -> None:
    each = begun(there)
    with pytest.raises(
        Incomplete, match=r"retry-1: 1 parts of this round are missing, .*00000-0000.parquet"
    ):
        aggregate(each.store.uri)
    assert open_store(there.uri).exists(SUCCESS_KEY), "the run itself is as complete as before"
    make(each, not_ok(0), not_ok(1), not_ok(2))
    assert aggregate(each.store.uri).ok == 17
    assert each.is_finished
    assert begun(there).plan.round == 2


def test_a_round_is_marked_last_of_all_that_it_changes(
    there: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = begun(there)
    make(each, encoded(0), encoded(1), encoded(2))

    def full(*_: object) -> None:
        raise Missing("the disk went away")

    monkeypatch.setattr("imagekiln.steps.aggregate.report.page.write_report", full)
    with pytest.raises(Missing):
        aggregate(there.uri)
    assert not each.is_finished


def test_an_image_that_is_ok_stays_whatever_a_round_says(there: PlanResult) -> None:
    store = open_store(there.uri)
    lost = store.read(part_key(0, 1))
    store.remove(part_key(0, 1))
    with pytest.raises(Incomplete):
        aggregate(there.uri)
    each = begun(there)
    assert each.plan.counts.images == 7
    rows = [part.rows.num_rows for part in read_shard(each.store, each.plan, 0)]
    for part, count in zip(read_shard(each.store, each.plan, 0), rows, strict=True):
        content = part_to_parquet(part.rows, [encoded(place + 100) for place in range(count)])
        commit_part(each.store, part.key, part.rows, content)
    store.create(part_key(0, 1), lost)  # somebody made it after all
    assert aggregate(there.uri).ok == 20
    places = [str(row["part"]) for row in manifests(there.uri)]
    assert places[:5] == [
        "retry-1/images/00000-0000.parquet",
        *[part_key(0, 0)] * 3,
        part_key(0, 1),
    ]
    found = verify(there.uri)
    assert (found.images, found.ok) == (20, 20)


def test_only_the_round_s_shards_that_hold_a_shard_s_images_are_read(
    there: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(begun(there), encoded(0), encoded(1), encoded(2))
    read: list[tuple[str, int]] = []
    original = read_shard

    def counted(store: Store, plan: object, number: int) -> object:
        read.append((store.uri, number))
        return original(store, plan, number)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(shard, "read_shard", counted)
    again = RunReconciler(open_store(there.uri), there.plan)
    for number in range(3):
        assert again.reconcile(number).manifest["status"].to_pylist()[0] == "ok"
    assert read.count((f"{there.uri}/retry-1", 0)) == 1, "neighbours share what was read"
    assert len(read) == 4


def test_time_of_a_round_is_counted(there: PlanResult) -> None:
    each = begun(there)
    make(each, encoded(0), encoded(1), encoded(2))
    told = ShardStats(
        0,
        attempts=1,
        images=3,
        parts=1,
        max_batch_size=4,
        device="a GPU",
        seconds=StageSeconds(total=6.0),
    )
    record_stats(each.store, told)
    done = aggregate(there.uri)
    assert (done.seconds.total, done.images_per_second, done.devices) == (6.0, 0.5, ("a GPU",))


def test_a_damaged_round_is_found(there: PlanResult) -> None:
    each = begun(there)
    make(each, encoded(0), encoded(1), encoded(2))
    aggregate(there.uri)
    content = each.store.read(part_key(0, 0))
    each.store.replace(
        part_key(0, 0),
        content.replace(encoded(1).content or b"", bytes(len(encoded(1).content or b""))),
    )
    with pytest.raises(Incomplete, match=r"retry-1/images/00000-0000.parquet: "):
        verify(there.uri)
    each.store.remove(part_key(0, 0))
    with pytest.raises(Incomplete, match=r"retry-1/images/00000-0000.parquet: no such file"):
        verify(there.uri)


def test_a_run_is_its_own_home_and_its_round_s(there: PlanResult) -> None:
    each = begun(there)
    assert resolve_run(there.uri) == (there.uri, 0)
    assert resolve_run(each.store.uri) == (there.uri, 1)
    assert resolve_run(f"{each.store.uri}/") == (there.uri, 1)
