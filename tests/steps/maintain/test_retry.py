"""A round of retry: what it holds and where it is cut, and that nothing else changes."""

import hashlib
import random
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, TryAgain
from imagekiln.steps.generate.step import ALL_PARTS, LazyDenoiser, generate_shard
from imagekiln.steps.local import run
from imagekiln.steps.maintain.retry import plan_next_round, retry
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY, part_key, shard_key
from imagekiln.steps.runs.plan import Plan, plan_to_json
from imagekiln.steps.runs.rounds import Round
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.cli.text import format_retry
from tests.faults import failing, image, manifests
from tests.jobs import files
from tests.runs import PROMPTS, begin_round, fill, finished, job, not_ok, planned, write_prompts
from tests.s3 import S3_AMONG_SLOW
from tests.texts import HOSTILE, chance

IMAGES = 200
ROWS = [{"prompt": f"a red circle number {place}", "id": f"row-{place}"} for place in range(IMAGES)]


def run_with_failures(folder: Path, bad: set[int], **changes: object) -> PlanResult:
    """A run of 25 shards of 8 images in parts of 4, aggregated, these of them having failed."""
    planned_run = planned(folder, str(folder / "out"), ROWS, limits={"failed_share": 1}, **changes)
    fill(planned_run, {place: not_ok(place) for place in bad})
    aggregate(planned_run.uri)
    return planned_run


def rows(result: Round) -> list[pa.Table]:
    return [
        read_table(result.store, shard_key(number)) for number in range(len(result.plan.shards))
    ]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_a_round_holds_what_is_not_ok_in_the_plan_s_order_and_knows_where_it_is_from(
    seed: int, tmp_path: Path
) -> None:
    dice: random.Random = chance(seed)
    bad = set(dice.sample(range(IMAGES), dice.choice((1, 30, IMAGES))))
    planned_run = run_with_failures(tmp_path, bad)
    result = begin_round(planned_run)
    shards = rows(result)
    assert [row for shard in shards for row in shard["id"].to_pylist()] == [
        f"row-{place}" for place in sorted(bad)
    ]
    assert [shard.num_rows for shard in shards] == [each.images for each in result.plan.shards]
    assert {shard.num_rows for shard in shards[:-1]} <= {8}
    for number in range(len(planned_run.plan.shards)):
        ids = {f"row-{place}" for place in range(8 * number, 8 * number + 8)}
        holding = [
            place for place, shard in enumerate(shards) if ids & set(shard["id"].to_pylist())
        ]
        assert set(holding) <= set(result.shards_covering(number))
    for shard, (first, last) in zip(shards, result.plan.source_shards, strict=True):
        places = [int(name.removeprefix("row-")) // 8 for name in shard["id"].to_pylist()]
        assert (min(places), max(places)) == (first, last)


def test_a_round_has_the_run_s_settings_and_counts_of_its_own(tmp_path: Path) -> None:
    planned_run = run_with_failures(tmp_path, {3, 90})
    result = begin_round(planned_run).plan
    assert (result.job, result.model, result.run_id, result.part_images) == (
        planned_run.plan.job,
        planned_run.plan.model,
        planned_run.plan.run_id,
        planned_run.plan.part_images,
    )
    assert (result.round, result.counts.images, result.source_shards) == (1, 2, ((0, 11),))


def test_the_same_manifest_gives_the_same_round_and_an_unfinished_one_is_resumed(
    tmp_path: Path,
) -> None:
    planned_run = run_with_failures(tmp_path, {3, 90})
    store = open_store(planned_run.uri)
    first = begin_round(planned_run)
    content = first.store.read(PLAN_KEY)
    assert begin_round(planned_run).plan == first.plan
    first.store.remove(PLAN_KEY)
    assert plan_to_json(begin_round(planned_run).plan) == first.store.read(PLAN_KEY) == content
    assert not store.exists("retry-2/plan.json")


def test_hostile_texts_and_carried_columns_go_along(tmp_path: Path) -> None:
    texts = [{"prompt": text, "note": text[::-1]} for text in HOSTILE]
    planned_run = planned(
        tmp_path, str(tmp_path / "out"), texts, carry=["note"], limits={"failed_share": 1}
    )
    fill(planned_run, {place: not_ok(place) for place in range(len(HOSTILE))})
    aggregate(planned_run.uri)
    result = [row for shard in rows(begin_round(planned_run)) for row in shard.to_pylist()]
    assert [(row["prompt"], row["note"]) for row in result] == [
        (row["prompt"], row["note"]) for row in manifests(planned_run.uri)
    ]


TEXTS = [str(row["prompt"]) for row in PROMPTS]
BAD = (1, 2, 9, 17)  # in three shards


@pytest.fixture
def failed(tmp_path: Path, store_uri: str) -> str:
    """A run of 20 images, four of which failed."""
    expected = job(write_prompts(tmp_path / "prompts.parquet"), store_uri)
    with failing(*(TEXTS[place] for place in BAD)), pytest.raises(Incomplete) as caught:
        run(expected)
    uri, _, _ = str(caught.value).partition(": ")
    assert f"imagekiln retry {uri}" in str(caught.value)
    return uri


def lacking_parts(
    folder: Path, *parts: tuple[int, int], failed: int | None = None, **changes: object
) -> tuple[Store, Plan]:
    """A run of 20 images that lacks these parts, aggregated; one other image may have failed."""
    planned_run = planned(folder, str(folder / "out"), PROMPTS, **changes)
    fill(planned_run, {} if failed is None else {failed: not_ok(failed)})
    store = open_store(planned_run.uri)
    part_format = format_of(planned_run.plan.job)
    for number, place in parts:
        part = read_shard(store, planned_run.plan, number)[place]
        for key in {part.key, *part_format.object_keys(part)}:
            store.remove(key)
    with pytest.raises(Incomplete, match="images are missing"):
        aggregate(store.uri)
    return store, planned_run.plan


def begin(store: Store, plan: Plan) -> Round:
    """Plan a round, which may be killed before it makes anything."""
    retry_round = plan_next_round(store, plan)
    assert retry_round is not None
    return retry_round


def generate(planned_run: Round, number: int, parts: slice = ALL_PARTS) -> None:
    """Make what is missing of a shard of a run or of one of its rounds."""
    store, plan = planned_run.store, planned_run.plan
    with closing(LazyDenoiser(store, plan)) as denoiser:
        generate_shard(store, plan, number, denoiser, NoProgress(), Stop(), parts=parts)


def stored_objects(store: Store) -> dict[str, bytes]:
    """Every part of the run itself, and its plan and lists."""
    parts = [
        part_key(number, part) for number, count in enumerate((2, 2, 1)) for part in range(count)
    ]
    return {key: store.read(key) for key in (PLAN_KEY, *map(shard_key, range(3)), *parts)}


@S3_AMONG_SLOW
def test_only_failed_images_are_generated_again_and_the_others_stay_byte_for_byte(
    failed: str, tmp_path: Path
) -> None:
    store = open_store(failed)
    parts, before = stored_objects(store), manifests(failed)
    with failing() as drawn:
        done = retry(failed)
    assert sorted(set(drawn)) == sorted(TEXTS[place] for place in BAD)
    assert (done.uri, done.round, done.images, done.summary.ok, done.summary.rounds) == (
        failed,
        1,
        4,
        20,
        1,
    )
    assert stored_objects(store) == parts
    after = manifests(failed)
    assert [row for place, row in enumerate(after) if place not in BAD] == [
        row for place, row in enumerate(before) if place not in BAD
    ]
    for place in BAD:
        assert (after[place]["status"], after[place]["part"]) == (
            "ok",
            "retry-1/images/00000-0000.parquet",
        )
        assert hashlib.sha256(image(store, after[place])).hexdigest() == after[place]["sha256"]
    assert store.read(SUCCESS_KEY) == b"20 of 20 images\n"
    assert verify(failed).ok == 20
    whole = finished(tmp_path / "whole")  # the same job, undisturbed
    assert [row["sha256"] for row in after] == [row["sha256"] for row in manifests(whole.uri)]


@S3_AMONG_SLOW
def test_a_retry_of_a_retry_holds_only_what_the_first_one_left(failed: str) -> None:
    with failing(TEXTS[9]), pytest.raises(Incomplete, match="1 of 20 images are not ok"):
        retry(failed)
    first = manifests(failed)
    assert first[9]["part"] == "retry-1/images/00000-0000.parquet", (
        "the latest round speaks, of a failure too"
    )
    with failing() as drawn:
        done = retry(failed)
    assert set(drawn) == {TEXTS[9]}
    assert (done.round, done.images, done.summary.ok, done.summary.rounds) == (2, 1, 20, 2)
    second = manifests(failed)
    assert second[9]["part"] == "retry-2/images/00000-0000.parquet"
    assert [row for place, row in enumerate(second) if place != 9] == [
        row for place, row in enumerate(first) if place != 9
    ]
    assert verify(failed).ok == 20


def test_where_nothing_is_left_nothing_is_written(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    before = files(tmp_path / "run")
    done = retry(store.uri)
    assert (done.round, done.images, done.summary.ok) == (0, 0, 20)
    assert files(tmp_path / "run") == before


def test_filtered_images_are_not_generated_again(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 1})
    fill(planned_run, {3: not_ok(3, "filtered"), 4: not_ok(4, "blank")})
    aggregate(planned_run.uri)
    with failing() as drawn:
        assert retry(planned_run.uri).images == 1
    assert set(drawn) == {TEXTS[4]}
    assert {
        place: row["status"]
        for place, row in enumerate(manifests(planned_run.uri))
        if row["status"] != "ok"
    } == {3: "filtered"}


def test_images_of_a_lost_part_are_generated_again(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    before = manifests(store.uri)
    store.remove(part_key(1, 0))
    with pytest.raises(Incomplete, match="4 of 20 images are missing"):
        aggregate(store.uri)
    with failing() as drawn:
        done = retry(store.uri)
    assert set(drawn) == set(TEXTS[8:12])
    assert (done.images, done.summary.ok, done.summary.missing_parts_count) == (4, 20, 0)
    assert [row["sha256"] for row in manifests(store.uri)] == [row["sha256"] for row in before]
    result = verify(store.uri)
    assert (result.images, result.ok, result.bytes) == (
        20,
        20,
        sum(int(str(row["byte_size"])) for row in before),
    )


def test_a_run_that_was_never_aggregated_has_to_be_finished_first(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"))
    with pytest.raises(
        Incomplete, match=r"manifest/00000.parquet: is missing.*imagekiln aggregate"
    ):
        retry(planned_run.uri)
    assert not (Path(planned_run.uri) / "retry-1").exists()


@S3_AMONG_SLOW
def test_a_stopped_retry_resumes_its_round(failed: str) -> None:
    stop = Stop()

    def stop_it(there: PlanResult) -> None:
        assert there.plan.round == 1
        stop.request()

    with pytest.raises(TryAgain, match=r"retry-1: shard 0 was stopped"):
        retry(failed, stop=stop, planned=stop_it)
    store = open_store(failed)
    planned_before = store.read("retry-1/plan.json")
    done = retry(failed)
    assert (done.round, done.images, done.summary.ok) == (1, 4, 20)
    assert store.read("retry-1/plan.json") == planned_before
    assert not store.exists("retry-2/plan.json")


@pytest.mark.slow
@S3_AMONG_SLOW
def test_a_round_may_be_named_in_place_of_its_run(failed: str) -> None:
    with failing(TEXTS[9]), pytest.raises(Incomplete):
        retry(failed)
    assert retry(f"{failed}/retry-1/").round == 2
    assert verify(f"{failed}/retry-2").ok == 20
    assert aggregate(f"{failed}/retry-1").rounds == 2


def test_a_share_that_was_accepted_by_hand_stays_accepted(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"))
    fill(planned_run, {3: not_ok(3, "filtered"), 4: not_ok(4)})
    aggregate(planned_run.uri, 0.1)
    assert retry(planned_run.uri).summary.ok == 19
    assert open_store(planned_run.uri).read(SUCCESS_KEY) == b"19 of 20 images\n"
    with pytest.raises(Incomplete):
        aggregate(planned_run.uri, 0.0)


PERMANENT = "ValueError: sampler 'lcm' does not fit this model"


def test_a_round_leaves_what_another_try_cannot_mend(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), ROWS, limits={"failed_share": 1})
    errors = {3: PERMANENT, 90: "OutOfMemoryError: no room", 91: "SomeError: what nobody knows"}
    fill(planned_run, {place: not_ok(place, error=error) for place, error in errors.items()})
    summary = aggregate(planned_run.uri)
    assert (summary.permanent_failures, summary.retryable) == (1, 2)
    retry_round = begin_round(planned_run)
    ids = [name for table in rows(retry_round) for name in table["id"].to_pylist()]
    assert ids == ["row-90", "row-91"]


@pytest.mark.slow
def test_where_no_try_can_mend_anything_there_is_no_round_unless_asked_for(
    tmp_path: Path,
) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), ROWS, limits={"failed_share": 1})
    fill(planned_run, {place: not_ok(place, error=PERMANENT) for place in (3, 90)})
    aggregate(planned_run.uri)
    store = open_store(planned_run.uri)
    assert plan_next_round(store, planned_run.plan) is None
    assert not store.exists("retry-1/plan.json")
    result = retry(planned_run.uri)
    assert (result.round, result.images) == (0, 0)
    text = format_retry(result)
    assert "2 failed images cannot be fixed by trying again" in text
    assert f"  2: {PERMANENT}" in text
    assert f"imagekiln retry {planned_run.uri} --all" in text
    retry_round = plan_next_round(store, planned_run.plan, include_permanent=True)
    assert retry_round is not None
    assert retry_round.plan.counts.images == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "offers_retry"), [({3: PERMANENT}, False), ({3: PERMANENT, 4: "Lost: it"}, True)]
)
def test_the_verdict_offers_a_retry_only_where_it_can_help(
    tmp_path: Path, places: dict[int, str], offers_retry: bool
) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), ROWS)
    fill(planned_run, {place: not_ok(place, error=error) for place, error in places.items()})
    with pytest.raises(Incomplete) as caught:
        aggregate(planned_run.uri)
    message = str(caught.value)
    assert "1 failed image cannot be fixed by trying again, so retry skips them" in message
    assert (f"imagekiln retry {planned_run.uri}" in message) == offers_retry
    assert "To accept them: imagekiln aggregate" in message


@pytest.mark.slow
def test_a_round_whose_images_the_job_made_meanwhile_is_superseded(tmp_path: Path) -> None:
    store, plan = lacking_parts(tmp_path, (0, 0), (1, 0))
    begun = begin(store, plan)
    with failing() as drawn:
        generate(Round(store, plan), 0)
        generate(Round(store, plan), 1)
        done = retry(store.uri)
    assert sorted(drawn) == sorted([*TEXTS[:4], *TEXTS[8:12]])  # each once
    assert (done.round, done.summary.ok) == (0, 20)
    assert begun.is_superseded
    assert not begun.is_finished
    assert verify(store.uri).ok == 20


@pytest.mark.slow
def test_what_a_round_has_made_is_not_made_by_the_job(tmp_path: Path) -> None:
    store, plan = lacking_parts(tmp_path, (0, 0), (1, 0))
    with failing(TEXTS[0]) as drawn:
        with pytest.raises(Incomplete, match="1 of 20 images are not ok"):
            retry(store.uri)
        generate(Round(store, plan), 0)
        generate(Round(store, plan), 1)
    assert sorted(drawn) == sorted([*TEXTS[1:4], *TEXTS[8:12]])
    assert (retry(store.uri).images, verify(store.uri).ok) == (1, 20)


@pytest.mark.slow
def test_a_part_that_a_round_has_begun_is_left_to_rounds(tmp_path: Path) -> None:
    store, plan = lacking_parts(tmp_path, (0, 0), (1, 0), failed=5)
    begun = begin(store, plan)  # in parts of 0 to 3; of 5, 8, 9 and 10; of 11
    with failing() as drawn:
        generate(begun, 0, parts=slice(1, 2))
        generate(Round(store, plan), 0)
        generate(Round(store, plan), 1)
        assert not store.exists(part_key(1, 0))
        with pytest.raises(Incomplete, match="has begun, resume the round: imagekiln retry"):
            aggregate(store.uri)
        done = retry(store.uri)
    assert sorted(drawn) == sorted([*TEXTS[:4], TEXTS[5], *TEXTS[8:12]])  # each once
    assert (done.round, done.images, done.summary.ok) == (2, 1, 20)
    assert verify(store.uri).ok == 20
