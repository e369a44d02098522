"""A preview: images of the run, made before all others, and their page."""

from pathlib import Path

import pytest

from imagekiln.steps.aggregate.preview import judge_first_shard
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.local import preview, run
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import SUCCESS_KEY, part_key
from imagekiln.steps.storage import open_store
from tests.runs import PROMPTS, fill, job, not_ok, write_prompts


def test_a_preview_is_the_first_part_of_the_run_and_nothing_is_made_twice(tmp_path: Path) -> None:
    tiny = job(write_prompts(tmp_path / "prompts.parquet"), str(tmp_path / "out"))
    result = preview(tiny, 6)
    assert (result.summary.images, result.planned_images) == (6, len(PROMPTS))
    page = Path(result.page).read_text()
    assert "Preview: all 6 images are ok, as the job asks." in page
    assert page.count("thumbnails/") >= 6
    assert ">images planned in the first shard</dt><dd>6<" in page

    store = open_store(result.uri)
    assert not store.exists(SUCCESS_KEY)
    first = Path(store.uri_of(part_key(0, 0)))
    written_at = first.stat().st_mtime_ns
    finished = run(tiny)
    assert finished.uri == result.uri
    assert finished.summary.ok == len(PROMPTS)
    assert first.stat().st_mtime_ns == written_at
    assert load_summary(store).images == len(PROMPTS)


def test_a_preview_of_failures_says_what_failed_and_where_to_see_it(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet")
    planned = make_plan(job(prompts, str(tmp_path / "out")), sample_images=8)
    fill(planned, {2: not_ok(2), 3: not_ok(3)})
    with pytest.raises(Incomplete) as failure:
        judge_first_shard(planned.uri)
    message = str(failure.value)
    assert "the first 8 images of 20 are not as the job asks: 2 of 8 images are not ok" in message
    assert "RuntimeError: a fault" in message
    page = f"{planned.uri}/preview/report/index.html"
    assert page in message
    assert "a fault" in Path(page).read_text()


def test_gates_judge_a_preview(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet")
    gates = {"blank": {"share": 0.1}}
    tiny = job(prompts, str(tmp_path / "out"), gates=gates, limits={"failed_share": 1.0})
    planned = make_plan(tiny, sample_images=8)
    fill(planned, {1: not_ok(1, "blank", "no contrast")})
    with pytest.raises(Incomplete, match=r"blank found 1 of 8 .*10.* are allowed"):
        judge_first_shard(planned.uri)


def test_a_run_that_was_planned_without_a_sample_has_no_preview(tmp_path: Path) -> None:
    tiny = job(write_prompts(tmp_path / "prompts.parquet"), str(tmp_path / "out"))
    make_plan(tiny)
    with pytest.raises(BadInput, match="planned without a sample"):
        preview(tiny, 4)
