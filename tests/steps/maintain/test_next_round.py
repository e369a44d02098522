"""Planning a round: what it holds, and where it is cut."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import PLAN_KEY, part_key, shard_key
from imagekiln.steps.runs.plan import plan_to_json
from imagekiln.steps.runs.rounds import Round
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.storage import open_store
from tests.faults import manifests
from tests.runs import begun, fill, not_ok, planned
from tests.texts import HOSTILE, chance

IMAGES = 200
ROWS = [{"prompt": f"a red circle number {place}", "id": f"row-{place}"} for place in range(IMAGES)]


def made(folder: Path, bad: set[int], **changes: object) -> PlanResult:
    """A run of 25 shards of 8 images in parts of 4, aggregated, these of them having failed."""
    there = planned(folder, str(folder / "out"), ROWS, limits={"failed_share": 1}, **changes)
    fill(there, {place: not_ok(place) for place in bad})
    aggregate(there.uri)
    return there


def rows(found: Round) -> list[pa.Table]:
    return [read_table(found.store, shard_key(number)) for number in range(len(found.plan.shards))]


@pytest.mark.parametrize("seed", range(3))
def test_a_round_holds_what_is_not_ok_in_the_plan_s_order_and_knows_where_it_is_from(
    seed: int, tmp_path: Path
) -> None:
    dice: random.Random = chance(seed)
    bad = set(dice.sample(range(IMAGES), dice.choice((1, 30, IMAGES))))
    there = made(tmp_path, bad)
    found = begun(there)
    shards = rows(found)
    assert [row for shard in shards for row in shard["id"].to_pylist()] == [
        f"row-{place}" for place in sorted(bad)
    ]
    assert [shard.num_rows for shard in shards] == [each.images for each in found.plan.shards]
    assert {shard.num_rows for shard in shards[:-1]} <= {8}
    for number in range(len(there.plan.shards)):
        ids = {f"row-{place}" for place in range(8 * number, 8 * number + 8)}
        holding = [
            place for place, shard in enumerate(shards) if ids & set(shard["id"].to_pylist())
        ]
        assert set(holding) <= set(found.shards_covering(number))
    for shard, (first, last) in zip(shards, found.plan.source_shards, strict=True):
        places = [int(name.removeprefix("row-")) // 8 for name in shard["id"].to_pylist()]
        assert (min(places), max(places)) == (first, last)


def test_a_round_has_the_run_s_settings_and_counts_of_its_own(tmp_path: Path) -> None:
    there = made(tmp_path, {3, 90})
    found = begun(there).plan
    assert (found.job, found.model, found.run_id, found.part_images) == (
        there.plan.job,
        there.plan.model,
        there.plan.run_id,
        there.plan.part_images,
    )
    assert (found.round, found.counts.images, found.source_shards) == (1, 2, ((0, 11),))


def test_the_same_manifest_gives_the_same_round_and_an_unfinished_one_is_gone_on_with(
    tmp_path: Path,
) -> None:
    there = made(tmp_path, {3, 90})
    store = open_store(there.uri)
    first = begun(there)
    content = first.store.read(PLAN_KEY)
    assert begun(there).plan == first.plan
    first.store.remove(PLAN_KEY)
    assert plan_to_json(begun(there).plan) == first.store.read(PLAN_KEY) == content
    assert not store.exists("retry-2/plan.json")


def test_what_a_killed_planning_left_on_an_older_manifest_is_no_obstacle(tmp_path: Path) -> None:
    there = made(tmp_path, {3})
    begun(there).store.remove(PLAN_KEY)
    fill(there)  # is there already: the first writer wins
    store = open_store(there.uri)
    store.remove(part_key(5, 0))
    with pytest.raises(Incomplete):
        aggregate(there.uri)
    found = begun(there)
    assert found.plan.counts.images == 5
    assert [row for shard in rows(found) for row in shard["id"].to_pylist()] == [
        f"row-{place}" for place in (3, 40, 41, 42, 43)
    ]


def test_a_shard_of_a_round_is_as_much_work_as_one_of_the_run(tmp_path: Path) -> None:
    mixed = [row | {"steps": 8 if place < 40 else 2} for place, row in enumerate(ROWS[:80])]
    there = planned(
        tmp_path,
        str(tmp_path / "out"),
        mixed,
        limits={"failed_share": 1},
        shard={"minutes": 1, "seconds_per_image": 2},
        defaults={"steps": 4},
    )
    fill(there, {place: not_ok(place) for place in range(80)})
    aggregate(there.uri)
    assert [each.images for each in begun(there).plan.shards] == [
        each.images for each in there.plan.shards
    ]


def test_hostile_texts_and_carried_columns_go_along(tmp_path: Path) -> None:
    texts = [{"prompt": text, "note": text[::-1]} for text in HOSTILE]
    there = planned(
        tmp_path, str(tmp_path / "out"), texts, carry=["note"], limits={"failed_share": 1}
    )
    fill(there, {place: not_ok(place) for place in range(len(HOSTILE))})
    aggregate(there.uri)
    found = [row for shard in rows(begun(there)) for row in shard.to_pylist()]
    assert [(row["prompt"], row["note"]) for row in found] == [
        (row["prompt"], row["note"]) for row in manifests(there.uri)
    ]
