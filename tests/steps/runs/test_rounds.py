"""What each image has come to, over all rounds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from imagekiln.steps.aggregate import reconcile
from imagekiln.steps.aggregate.reconcile import RunReconciler
from imagekiln.steps.aggregate.step import aggregate, aggregate_run
from imagekiln.steps.errors import Incomplete, Missing, TryAgain
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import REPORT_KEY, SUCCESS_KEY, part_key
from imagekiln.steps.runs.parquet_format import part_to_parquet
from imagekiln.steps.runs.parts import commit_part
from imagekiln.steps.runs.rounds import Round, Run, open_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from imagekiln.steps.storage.store import Store
from tests.faults import manifests
from tests.runs import begin_round, encoded, fill, not_ok, planned


@pytest.fixture
def planned_run(tmp_path: Path) -> PlanResult:
    """A run of 20 images, of which the first of each shard (of 8, 8 and 4) failed."""
    planned_run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 1})
    fill(planned_run, {place: not_ok(place) for place in (0, 8, 16)})
    aggregate(planned_run.uri)
    return planned_run


def make(each: Round, *images: EncodedImage) -> None:
    """Write a round's only part."""
    (part,) = read_shard(each.store, each.plan, 0)
    commit_part(each.store, part.key, part.rows, part_to_parquet(part.rows, images))


def statuses(uri: str) -> list[object]:
    return [row["status"] for row in manifests(uri)]


def test_the_latest_round_decides_about_images_that_are_not_ok(planned_run: PlanResult) -> None:
    make(
        begin_round(planned_run),
        encoded(0),
        not_ok(1, error="RuntimeError: again"),
        not_ok(2, "blank"),
    )
    done = aggregate(planned_run.uri)
    assert (done.ok, done.statuses, done.rounds) == (18, {"blank": 1, "failed": 1, "ok": 18}, 1)
    assert [each.error for each in done.failures] == [
        "RuntimeError: again",
        "RuntimeError: a fault",
    ]
    make(begin_round(planned_run), not_ok(0), encoded(1))
    assert statuses(planned_run.uri)[0] == "ok"
    done = aggregate(planned_run.uri)
    assert (done.ok, done.rounds) == (19, 2)


def test_an_image_that_a_round_lacks_keeps_what_was_said_before(planned_run: PlanResult) -> None:
    each = begin_round(planned_run)
    assert aggregate(planned_run.uri).statuses == {"failed": 3, "ok": 17}
    assert not each.is_finished
    assert verify(planned_run.uri).ok == 17


def test_a_round_is_finished_once_all_its_parts_are_accounted_for(planned_run: PlanResult) -> None:
    each = begin_round(planned_run)
    with pytest.raises(
        Incomplete, match=r"retry-1: 1 part of this round is missing, .*00000-0000.parquet"
    ):
        aggregate(each.store.uri)
    assert open_store(planned_run.uri).exists(SUCCESS_KEY), (
        "the run itself is as complete as before"
    )
    make(each, not_ok(0), not_ok(1), not_ok(2))
    assert aggregate(each.store.uri).ok == 17
    assert each.is_finished
    assert begin_round(planned_run).plan.round == 2


class WithoutReport(LocalStore):
    """A disk that fails when the report is written."""

    def replace_after(self, check: Callable[[], None], key: str, data: bytes) -> None:
        if key == REPORT_KEY:
            raise TryAgain("the disk went away")
        super().replace_after(check, key, data)


def test_a_round_is_marked_last_of_all_that_it_changes(planned_run: PlanResult) -> None:
    each = begin_round(planned_run)
    make(each, encoded(0), encoded(1), encoded(2))
    with pytest.raises(TryAgain):
        aggregate_run(Run(WithoutReport(Path(planned_run.uri)), planned_run.plan))
    assert not each.is_finished


def test_an_image_that_is_ok_stays_whatever_a_round_says(planned_run: PlanResult) -> None:
    store = open_store(planned_run.uri)
    lost = store.read(part_key(0, 1))
    store.remove(part_key(0, 1))
    with pytest.raises(Incomplete):
        aggregate(planned_run.uri)
    each = begin_round(planned_run)
    assert each.plan.counts.images == 7
    rows = [part.rows.num_rows for part in read_shard(each.store, each.plan, 0)]
    for part, count in zip(read_shard(each.store, each.plan, 0), rows, strict=True):
        content = part_to_parquet(part.rows, [encoded(place + 100) for place in range(count)])
        commit_part(each.store, part.key, part.rows, content)
    store.create(part_key(0, 1), lost)  # somebody made it after all
    assert aggregate(planned_run.uri).ok == 20
    places = [str(row["part"]) for row in manifests(planned_run.uri)]
    assert places[:5] == [
        "retry-1/images/00000-0000.parquet",
        *[part_key(0, 0)] * 3,
        part_key(0, 1),
    ]
    result = verify(planned_run.uri)
    assert (result.images, result.ok) == (20, 20)


def test_only_the_round_s_shards_that_hold_a_shard_s_images_are_read(
    planned_run: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(begin_round(planned_run), encoded(0), encoded(1), encoded(2))
    read: list[tuple[str, int]] = []
    original = read_shard

    def counted(store: Store, plan: object, number: int) -> object:
        read.append((store.uri, number))
        return original(store, plan, number)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(reconcile, "read_shard", counted)
    again = RunReconciler(open_store(planned_run.uri), planned_run.plan)
    for number in range(3):
        assert again.reconcile(number).manifest["status"].to_pylist()[0] == "ok"
    assert read.count((f"{planned_run.uri}/retry-1", 0)) == 1, "neighbours share what was read"
    assert len(read) == 4


def test_a_damaged_round_is_found(planned_run: PlanResult) -> None:
    each = begin_round(planned_run)
    make(each, encoded(0), encoded(1), encoded(2))
    aggregate(planned_run.uri)
    content = each.store.read(part_key(0, 0))
    each.store.replace(
        part_key(0, 0),
        content.replace(encoded(1).content or b"", bytes(len(encoded(1).content or b""))),
    )
    with pytest.raises(Incomplete, match=r"retry-1/images/00000-0000.parquet: "):
        verify(planned_run.uri)
    each.store.remove(part_key(0, 0))
    with pytest.raises(Incomplete, match=r"retry-1/images/00000-0000.parquet: no such file"):
        verify(planned_run.uri)


def test_a_run_is_opened_by_its_own_name_and_by_that_of_its_round(planned_run: PlanResult) -> None:
    each = begin_round(planned_run)
    for uri, number in ((planned_run.uri, 0), (each.store.uri, 1)):
        run = open_run(uri)
        assert (run.store.uri, run.plan, run.round) == (planned_run.uri, planned_run.plan, number)
        assert run.is_finished


def test_where_there_is_no_plan_no_run_is_opened(tmp_path: Path) -> None:
    for name in ("nowhere", "retry-1"):
        with pytest.raises(Missing, match="holds no plan"):
            open_run(str(tmp_path / name))
