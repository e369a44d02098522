"""Nights over a table of prompts that grows: only what is new is made."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.job.job import Job
from imagekiln.steps.local import RunResult, run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import REPORT_KEY, SUCCESS_KEY
from imagekiln.steps.runs.registry import find_finished_runs
from imagekiln.steps.storage import open_store
from tests import jobs, runs
from tests.faults import manifests
from tests.runs import PROMPTS, fill
from tests.s3 import S3_AMONG_SLOW

Rows = Sequence[Mapping[str, object]]


def night(scratch: Path, output: str, rows: Rows, **changes: object) -> Job:
    """The job of a night on which the table has these rows."""
    prompts = runs.write_prompts(scratch / f"{len(rows)}.parquet", rows)
    return runs.job(
        prompts,
        output,
        **{"skip_existing": True, "part": {"images": 2}, "batch": {"images": 2}, **changes},
    )


def over(planned: PlanResult, outcomes: Mapping[int, EncodedImage] | None = None) -> PlanResult:
    """The night is over, and every image of the plan made, as noise."""
    fill(planned, outcomes)
    aggregate(planned.uri)
    return planned


def prompts_of(planned: PlanResult) -> list[str]:
    """What a plan is to draw."""
    return [str(prompt) for prompt in jobs.image_rows(planned)["prompt"].to_pylist()]


def texts(rows: Rows) -> list[object]:
    """The prompts of some rows."""
    return [row["prompt"] for row in rows]


def manifest(ran: RunResult) -> pa.Table:
    """What a run made: the id of each image, and the hash of its pixels."""
    rows = pa.Table.from_pylist(manifests(ran.uri))
    return rows.select(["image_id", "pixels_sha256"])


def test_three_nights_are_together_what_one_run_over_all_rows_is(tmp_path: Path) -> None:
    rows, shapes = (
        PROMPTS[:9],
        {"model": jobs.SHAPES, "defaults": {"steps": 1, "width": 64, "height": 64}},
    )
    tables_by_night = (rows[:4], rows[:7], (*rows, rows[2]))
    nights = [
        run(night(tmp_path, str(tmp_path / "out"), table, **shapes)) for table in tables_by_night
    ]
    whole = run(night(tmp_path, str(tmp_path / "whole"), rows, **shapes))
    assert [each.summary.images for each in nights] == [4, 3, 2]
    assert [each.summary.existing_images for each in nights] == [0, 4, 7]
    for ran in nights:
        summary = ran.summary
        assert (
            summary.rows - summary.rejected_rows
            == summary.images + summary.duplicate_images + summary.existing_images
        )
        assert verify(ran.uri).ok == summary.ok == summary.images
    union = pa.concat_tables([manifest(ran) for ran in nights])
    assert union.sort_by("image_id").equals(manifest(whole).sort_by("image_id"))
    assert [entry.run_id for entry in find_finished_runs(str(tmp_path / "out"))] == [
        each.summary.run_id for each in nights
    ]


@S3_AMONG_SLOW
def test_only_what_is_new_is_planned(store_uri: str, tmp_path: Path) -> None:
    first = over(make_plan(night(tmp_path, store_uri, PROMPTS[:4])))
    second = make_plan(night(tmp_path, store_uri, PROMPTS[:7]))
    assert prompts_of(second) == texts(PROMPTS[4:7])
    assert (first.plan.existing_runs, second.plan.existing_runs) == ((), (first.plan.run_id,))
    assert (second.plan.counts.images, second.plan.counts.existing_images) == (3, 4)


@S3_AMONG_SLOW
def test_night_with_nothing_new_ends_well_with_nothing(store_uri: str, tmp_path: Path) -> None:
    over(make_plan(night(tmp_path, store_uri, PROMPTS[:4])))
    job = night(tmp_path, store_uri, PROMPTS[:4], run_id="quiet")
    assert (estimate(job).images, estimate(job).shards, estimate(job).existing_images) == (0, 0, 4)
    quiet = run(job)
    assert (quiet.summary.images, quiet.summary.existing_images) == (0, 4)
    assert open_store(quiet.uri).exists(SUCCESS_KEY)
    assert verify(quiet.uri).images == 0
    assert b"</html>" in open_store(quiet.uri).read(REPORT_KEY)
    assert make_plan(night(tmp_path, store_uri, PROMPTS[:5])).plan.counts.images == 1


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("left", ["planned", "made", "undone"])
def test_run_without_success_holds_nothing(tmp_path: Path, left: str) -> None:
    output = str(tmp_path / "out")
    first = make_plan(night(tmp_path, output, PROMPTS[:4]))
    if left != "planned":
        fill(first)
    if left == "undone":
        aggregate(first.uri)
        open_store(first.uri).remove(SUCCESS_KEY)
    second = make_plan(night(tmp_path, output, PROMPTS[:5]))
    assert (second.plan.counts.images, second.plan.existing_runs) == (5, ())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "change", [{"model": jobs.SHAPES}, {"defaults": {"steps": 3, "guidance": 3.0, "seed": 7}}]
)
def test_image_of_another_model_or_setting_is_another_image(
    tmp_path: Path, change: dict[str, object]
) -> None:
    output = str(tmp_path / "out")
    over(make_plan(night(tmp_path, output, PROMPTS[:4])))
    other = make_plan(night(tmp_path, output, PROMPTS[:4], **change))
    assert (other.plan.counts.images, other.plan.counts.existing_images) == (4, 0)
    assert len(other.plan.existing_runs) == 1


def test_refused_rows_duplicates_and_existing_images_add_up(tmp_path: Path) -> None:
    output, rows = str(tmp_path / "out"), [{"prompt": f"number {place % 7}"} for place in range(12)]
    over(make_plan(night(tmp_path, output, rows[:3])))
    mixed = [*rows, {"prompt": " "}]
    counts = make_plan(night(tmp_path, output, mixed, limits={"rejected_share": 0.5})).plan.counts
    assert (
        counts.rejected_rows,
        counts.images,
        counts.duplicate_images,
        counts.existing_images,
    ) == (1, 4, 5, 3)
