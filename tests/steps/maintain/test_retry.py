"""A retry: which images it has, where it is cut, and that nothing else changes."""

import hashlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, TryAgain
from imagekiln.steps.generate.start import generate
from imagekiln.steps.local import run
from imagekiln.steps.maintain.retry import announce_retry, plan_retry, retry
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import open_run, shards_covering
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.workflows.cli.text import format_retry
from tests.faults import failing, image, manifests
from tests.interleaving import frozen, interleaving
from tests.runs import PROMPTS, begin_retry, fill, finished, job, not_ok, planned, write_prompts
from tests.s3 import S3_AMONG_SLOW
from tests.texts import chance

IMAGES = 200
ROWS = [{"prompt": f"a red circle number {place}", "id": f"row-{place}"} for place in range(IMAGES)]
TEXTS = [str(row["prompt"]) for row in PROMPTS]
BAD = (1, 2, 9, 17)  # in three shards


def run_with_failures(folder: Path, bad: set[int], **changes: object) -> PlanResult:
    """A run of 25 shards of 8 images in parts of 4, aggregated, these of them having failed."""
    planned_run = planned(folder, str(folder / "out"), ROWS, limits={"failed_share": 1}, **changes)
    fill(planned_run, {place: not_ok(place) for place in bad})
    aggregate(planned_run.uri)
    return planned_run


def shards_of(uri: str, plan: Plan) -> list[pa.Table]:
    """The rows of each shard of a retry."""
    store = open_store(uri)
    return [read_shard_rows(store, plan, number) for number in range(len(plan.shards))]


def images_in_files(uri: str) -> list[str]:
    """The rows of all images that a reader of the files finds, in order."""
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT id FROM '{uri}/images/*.parquet'").fetchall()
    return sorted(row_id for (row_id,) in found)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_a_retry_has_what_is_not_ok_in_the_plan_s_order_and_knows_where_it_is_from(
    seed: int, tmp_path: Path
) -> None:
    dice: random.Random = chance(seed)
    bad = set(dice.sample(range(IMAGES), dice.choice((1, 30, IMAGES))))
    planned_run = run_with_failures(tmp_path, bad)
    plan = begin_retry(planned_run)
    shards = shards_of(planned_run.uri, plan)
    assert [row for shard in shards for row in shard["id"].to_pylist()] == [
        f"row-{place}" for place in sorted(bad)
    ]
    assert max(shard.num_rows for shard in shards) <= 8
    assert len(shards) <= 2 * -(-len(bad) // 8)
    assert (plan.counts.images, plan.job) == (len(bad), planned_run.plan.job)
    for number in range(len(planned_run.plan.shards)):
        ids = {f"row-{place}" for place in range(8 * number, 8 * number + 8)}
        holding = [
            place for place, shard in enumerate(shards) if ids & set(shard["id"].to_pylist())
        ]
        assert set(holding) <= set(shards_covering(plan, number))
    for shard, (first, last) in zip(shards, plan.source_shards, strict=True):
        places = [int(name.removeprefix("row-")) // 8 for name in shard["id"].to_pylist()]
        assert (min(places), max(places)) == (first, last)


def test_two_retries_at_once_are_one(tmp_path: Path) -> None:
    planned_run = run_with_failures(tmp_path, {3, 90})
    with interleaving(Path(planned_run.uri), lambda *_: None):
        other = frozen(partial(begin_retry, planned_run), "create", "commits/000001.json")
        first = begin_retry(planned_run)
        other.finish()
        assert other.error is None
    assert begin_retry(planned_run) == first
    assert first.retry == read_head(open_store(planned_run.uri)).number == 1


@pytest.fixture
def failed(tmp_path: Path, store_uri: str) -> str:
    """A run of 20 images, four of which failed."""
    expected = job(write_prompts(tmp_path / "prompts.parquet"), store_uri)
    with failing(*(TEXTS[place] for place in BAD)), pytest.raises(Incomplete) as caught:
        run(expected)
    uri, _, _ = str(caught.value).partition(": ")
    assert f"imagekiln retry {uri}" in str(caught.value)
    return uri


@S3_AMONG_SLOW
def test_only_failed_images_are_generated_again_and_the_others_stay_byte_for_byte(
    failed: str, tmp_path: Path
) -> None:
    store = open_store(failed)
    before = manifests(failed)
    parts = {key: store.read(key) for key in {str(row["part"]) for row in before}}
    with failing() as drawn:
        done = retry(failed)
    assert sorted(set(drawn)) == sorted(TEXTS[place] for place in BAD)
    assert (done.uri, done.retry, done.images, done.summary.ok) == (failed, 1, 4, 20)
    assert {key: store.read(key) for key in parts} == parts
    after = manifests(failed)
    assert [row for place, row in enumerate(after) if place not in BAD] == [
        row for place, row in enumerate(before) if place not in BAD
    ]
    for place in BAD:
        assert (after[place]["status"], after[place]["part"]) == (
            "ok",
            "images/r1-00000-0000.parquet",
        )
        assert hashlib.sha256(image(store, after[place])).hexdigest() == after[place]["sha256"]
    assert verify(failed).ok == 20
    whole = finished(tmp_path / "whole")  # the same job, undisturbed
    assert [row["sha256"] for row in after] == [row["sha256"] for row in manifests(whole.uri)]


def test_a_retry_of_a_retry_has_only_what_the_first_one_left(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 1})
    uri = planned_run.uri
    fill(planned_run, {place: not_ok(place % 4) for place in BAD})
    aggregate(uri)
    with failing(TEXTS[9]):
        assert retry(uri).summary.ok == 19
    first = manifests(uri)
    assert first[9]["part"] == "images/r1-00000-0000.parquet", "of a failure, the latest counts"
    with failing() as drawn:
        done = retry(f"{uri}/retry-1/")
    assert set(drawn) == {TEXTS[9]}
    assert (done.retry, done.images, done.summary.ok, done.summary.retries) == (3, 1, 20, 2)
    second = manifests(uri)
    assert second[9]["part"] == "images/r3-00000-0000.parquet"
    assert [row for place, row in enumerate(second) if place != 9] == [
        row for place, row in enumerate(first) if place != 9
    ]
    assert verify(f"{uri}/retry-3").ok == len(images_in_files(uri)) == 20


def lacking_parts(folder: Path) -> tuple[PlanResult, Callable[[], PlanResult]]:
    """A run that lacks two parts and has a failed image; and how a workflow plans its retry."""
    prompts = write_prompts(folder / "prompts.parquet")
    settings = job(prompts, str(folder / "out"), run_id="run")
    planned_run = planned(folder, str(folder / "out"), run_id="run")
    fill(planned_run, {5: not_ok(1)})
    store = open_store(planned_run.uri)
    for number in (0, 1):
        store.remove(part_key(number, 0))
    with pytest.raises(Incomplete, match="8 of 20 images are missing"):
        aggregate(planned_run.uri)
    return planned_run, partial(plan_retry, settings)


def test_missing_parts_are_made_first_and_as_planned(tmp_path: Path) -> None:
    planned_run, _ = lacking_parts(tmp_path)
    with failing(TEXTS[0]) as drawn, pytest.raises(Incomplete, match="1 of 20 images are not ok"):
        retry(planned_run.uri)
    assert sorted(drawn) == sorted([*TEXTS[1:4], *TEXTS[8:12], TEXTS[5]])
    parts = [row["part"] for row in manifests(planned_run.uri)]
    assert parts[:4] == [*["images/r2-00000-0000.parquet"], *["images/00000-0000.parquet"] * 3]
    with failing() as drawn:
        assert retry(planned_run.uri).images == 1
    assert set(drawn) == {TEXTS[0]}
    assert format_retry(retry(planned_run.uri)).startswith("Nothing left to retry. ")
    assert verify(planned_run.uri).ok == len(images_in_files(planned_run.uri)) == 20


def test_a_workflow_s_retry_makes_missing_parts_first(tmp_path: Path) -> None:
    planned_run, plan_again = lacking_parts(tmp_path)
    first = plan_again()
    assert (first.uri, len(first.plan.shards)) == (planned_run.uri, 3)
    for number in range(3):
        generate(first.uri, number)
    with pytest.raises(Incomplete, match="1 of 20 images are not ok"):
        aggregate(first.uri)
    second = plan_again()
    assert (second.uri, second.plan.counts.images) == (f"{planned_run.uri}/retry-2", 1)
    assert plan_again().uri == second.uri
    with pytest.raises(Incomplete, match=r"To generate them again: imagekiln retry"):
        aggregate(second.uri)
    generate(second.uri, 0)
    assert aggregate(second.uri).ok == verify(second.uri).ok == 20
    assert (plan_again().uri, plan_again().plan.shards) == (planned_run.uri, ())


def test_a_run_that_was_never_aggregated_has_to_be_finished_first(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"))
    with pytest.raises(Incomplete, match=r"was never aggregated.*imagekiln aggregate"):
        retry(planned_run.uri)
    assert read_head(open_store(planned_run.uri)).number == -1


@S3_AMONG_SLOW
def test_a_stopped_retry_is_resumed(failed: str) -> None:
    stop = Stop()

    def stop_it(there: PlanResult) -> None:
        assert (there.plan.retry, there.uri) == (1, f"{failed}/retry-1")
        stop.request()

    with pytest.raises(TryAgain, match=r"shard 0 was stopped"):
        retry(failed, stop=stop, planned=stop_it)
    done = retry(failed)
    assert (done.retry, done.images, done.summary.ok) == (1, 4, 20)


def test_a_retry_that_is_made_in_part_is_resumed_whatever_is_counted_between(
    tmp_path: Path,
) -> None:
    planned_run = run_with_failures(tmp_path, set(range(0, IMAGES, 8)))
    uri = planned_run.uri
    with failing(*(str(ROWS[place]["prompt"]) for place in range(0, IMAGES, 16))):
        assert retry(uri).summary.ok == 187
    begun = begin_retry(planned_run)
    generate(f"{uri}/retry-3", 0)
    assert aggregate(uri).ok == 195
    assert begin_retry(planned_run) == begun
    with failing() as drawn:
        assert retry(uri).retry == 3
    assert len(set(drawn)) == 5
    assert aggregate(uri).ok == verify(uri).ok == len(images_in_files(uri)) == IMAGES


PERMANENT = "ValueError: sampler 'lcm' does not fit this model"


def test_a_retry_has_blank_images_and_failures_that_another_try_may_mend(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), ROWS, limits={"failed_share": 1})
    errors = {3: PERMANENT, 90: "OutOfMemoryError: no room", 91: "SomeError: what nobody knows"}
    outcomes = {place: not_ok(place % 4, error=error) for place, error in errors.items()}
    fill(planned_run, outcomes | {4: not_ok(0, "blank"), 5: not_ok(1, "filtered")})
    summary = aggregate(planned_run.uri)
    assert (summary.permanent_failures, summary.retryable) == (1, 3)
    (shard,) = shards_of(planned_run.uri, begin_retry(planned_run))
    assert shard["id"].to_pylist() == ["row-4", "row-90", "row-91"]


@pytest.mark.slow
def test_what_no_try_can_mend_is_retried_only_if_asked_for(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), ROWS, limits={"failed_share": 1})
    fill(planned_run, {place: not_ok(place % 4, error=PERMANENT) for place in (3, 90)})
    aggregate(planned_run.uri)
    result = retry(planned_run.uri)
    assert (result.retry, result.images) == (0, 0)
    assert f"imagekiln retry {planned_run.uri} --all" in format_retry(result)
    _, plan = announce_retry(open_run(planned_run.uri), include_permanent=True)
    assert plan is not None
    assert plan.counts.images == 2
