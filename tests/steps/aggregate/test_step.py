"""Accounting for every planned image."""

from dataclasses import replace
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.report import pictures
from imagekiln.steps.aggregate.step import aggregate, aggregate_run
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.job.output import Png
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.keys import (
    REPORT_KEY,
    SUCCESS_KEY,
    part_key,
    thumbnail_key,
)
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.faults import manifests
from tests.runs import PROMPTS, fill, not_ok, picture, planned
from tests.steps.aggregate.test_reconcile import FOOTER_BYTES, Reading


@pytest.fixture
def planned_run(tmp_path: Path) -> PlanResult:
    """A planned run: shards of 8, 8 and 4 images, in parts of 4."""
    return planned(tmp_path, str(tmp_path / "out"))


def _column(store: Store, name: str) -> list[object]:
    """A column of the whole manifest."""
    return [row[name] for row in manifests(store.uri)]


@pytest.mark.quick_cases(1)
def test_a_whole_run_gets_manifest_summary_report_and_success(
    tmp_path: Path, store_uri: str
) -> None:
    planned_run = planned(tmp_path, store_uri)
    fill(planned_run)
    summary = aggregate(planned_run.uri)
    store = open_store(planned_run.uri)
    assert (summary.images, summary.ok, summary.missing) == (20, 20, 0)
    assert load_summary(store) == summary
    assert store.read(SUCCESS_KEY) == b"20 of 20 images\n"
    assert b"Finished: all 20 images are ok." in store.read(REPORT_KEY)
    assert list(map(store.exists, read_head(store).commit.manifests)) == [True] * 3
    assert [store.exists(thumbnail_key(number)) for number in (0, 19, 20)] == [True, True, False]
    assert _column(store, "id") == [row["id"] for row in PROMPTS]


def test_missing_parts_are_named_and_everything_else_is_accounted_for(
    planned_run: PlanResult,
) -> None:
    fill(planned_run)
    store = open_store(planned_run.uri)
    for key in (part_key(0, 1), part_key(2, 0)):
        store.remove(key)
    sentence = (
        r"8 of 20 images are missing: images/00000-0001.parquet, images/00002-0000.parquet. "
        "See .*. Run the job again, .*. Or by hand, shard by shard: imagekiln generate .* "
        "--shard 0 && imagekiln generate .* --shard 2 && imagekiln aggregate "
    )
    with pytest.raises(Incomplete, match=sentence) as caught:
        aggregate(planned_run.uri)
    assert caught.value.exit_code == 3
    assert _column(store, "status") == ["ok"] * 4 + ["missing"] * 4 + ["ok"] * 8 + ["missing"] * 4
    assert load_summary(store).missing == 8
    assert store.exists(REPORT_KEY)
    assert not store.exists(SUCCESS_KEY)


def test_a_long_list_of_missing_parts_is_cut(tmp_path: Path) -> None:
    planned_run = planned(
        tmp_path,
        str(tmp_path / "out"),
        batch={"images": 1},
        part={"images": 1},
        shard={"images": 20},
    )
    with pytest.raises(
        Incomplete,
        match=r"20 of 20 images are missing: .*00000-0009.parquet and 10 more. See .*. Run the job",
    ):
        aggregate(planned_run.uri)


def test_a_run_becomes_whole_when_its_missing_part_is_made(planned_run: PlanResult) -> None:
    fill(planned_run)
    store = open_store(planned_run.uri)
    content = store.read(part_key(1, 0))
    store.remove(part_key(1, 0))
    with pytest.raises(Incomplete):
        aggregate(planned_run.uri, 1.0)
    assert not store.exists(SUCCESS_KEY)
    store.create(part_key(1, 0), content)
    assert aggregate(planned_run.uri).ok == 20
    assert store.exists(SUCCESS_KEY)
    assert _column(store, "status") == ["ok"] * 20


def test_more_bad_images_than_allowed_fail_the_run_with_their_causes(
    planned_run: PlanResult,
) -> None:
    fill(planned_run, {1: not_ok(1), 2: not_ok(2), 9: not_ok(9, "blank", "one colour")})
    sentence = (
        r"3 of 20 images are not ok: 2 failed \(RuntimeError: a fault\); "
        r"1 blank \(one colour\)\. 0 % are accepted\. .*--failed-share 0.15"
    )
    with pytest.raises(Incomplete, match=sentence):
        aggregate(planned_run.uri)
    assert not open_store(planned_run.uri).exists(SUCCESS_KEY)


def test_as_many_bad_images_as_the_job_allows_are_a_success(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 0.1})
    fill(planned_run, {1: not_ok(1), 2: not_ok(2)})
    assert aggregate(planned_run.uri).ok == 18
    assert open_store(planned_run.uri).read(SUCCESS_KEY) == b"18 of 20 images\n"


def test_no_image_is_read_but_those_of_the_contact_sheet(
    planned_run: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(
        planned_run,
        {place: encode_drawn_image(picture(place, side=256), Png()) for place in range(20)},
    )
    store = Reading(Path(planned_run.uri))
    monkeypatch.setattr(pictures, "MAX_SAMPLES", 1)
    summary = aggregate_run(replace(open_run(planned_run.uri), store=store))
    sheet = summary.bytes / 20
    assert sheet < store.bytes < sheet + 5 * FOOTER_BYTES + 120_000 < summary.bytes / 4
