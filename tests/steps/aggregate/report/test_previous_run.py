"""The run before this one."""

from dataclasses import replace
from pathlib import Path

from imagekiln.steps.aggregate.report.previous_run import compare_summaries, load_previous_summary
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.aggregate.throughput import DeviceUsage
from imagekiln.steps.local import run
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import REPORT_KEY, SUMMARY_KEY
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.registry import RunEntry, append_run_entry
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.runs import PROMPTS, fill, finished, job, planned, write_prompts


def _done(folder: Path, run_id: str, **changed: object) -> PlanResult:
    """A run that succeeded, in the log of its output."""
    planned_run = planned(folder, str(folder / "out"), PROMPTS[:4], run_id=run_id, **changed)
    fill(planned_run)
    aggregate(planned_run.uri)
    append_run_entry(str(folder / "out"), RunEntry(run_id, planned_run.plan.job.name))
    return planned_run


def _before(planned_run: PlanResult) -> str | None:
    result = load_previous_summary(open_store(planned_run.uri), planned_run.plan)
    return None if result is None else result.run_id


def test_the_previous_run_is_the_last_of_the_same_name(tmp_path: Path) -> None:
    first, other = _done(tmp_path, "first"), _done(tmp_path, "other", name="other")
    second = _done(tmp_path, "second")
    third = planned(tmp_path, str(tmp_path / "out"), PROMPTS[:4], run_id="third")
    assert [_before(each) for each in (first, other, second, third)] == [
        None,
        None,
        "first",
        "second",
    ]


def test_nights_without_images_are_skipped_and_are_compared_with_nothing(tmp_path: Path) -> None:
    _done(tmp_path, "first")
    quiet = _done(tmp_path, "quiet", skip_existing=True)
    assert _before(_done(tmp_path, "third")) == "first"
    html = open_store(quiet.uri).read(REPORT_KEY).decode()
    assert "there was no image to make" in html
    for absent in ("Compared with", "worse", "<pre>", "Quality gates", "Distributions"):
        assert absent not in html


def test_a_rate_that_one_run_did_not_measure_is_not_compared(tmp_path: Path) -> None:
    assert "images a second, per device" not in _changes(
        finished(tmp_path / "run"), images_per_second=0.0
    )


def test_a_previous_run_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    first, second = _done(tmp_path, "first"), _done(tmp_path, "second")
    open_store(first.uri).replace(SUMMARY_KEY, b"{}")
    assert _before(second) is None
    open_store(first.uri).remove(SUMMARY_KEY)
    assert _before(second) is None


def test_a_run_that_was_moved_has_no_previous_run(tmp_path: Path) -> None:
    store = finished(tmp_path / "moved")
    assert load_previous_summary(store, load_plan(store)) is None


def test_the_report_names_the_previous_run(tmp_path: Path) -> None:
    _done(tmp_path, "first")
    second = _done(tmp_path, "second")
    assert ">first</caption>" in open_store(second.uri).read(REPORT_KEY).decode()


def _changes(store: Store, **now: object) -> dict[str, tuple[str, str]]:
    before = load_summary(store)
    result = compare_summaries(replace(before, **now), before)  # type: ignore[arg-type]  # checked by what is then told
    return {each.name: (each.difference, each.judgment) for each in result}


def test_more_failures_are_worse_and_more_speed_is_better(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    rate = load_summary(store).images_per_second
    result = _changes(store, statuses={"ok": 10, "failed": 10}, images_per_second=2 * rate)
    assert result["share not ok"] == ("", "worse")  # than none at all
    assert result["images a second, per device"] == ("+100 %", "better")
    assert result["images ok"] == ("-50 %", "")


def test_a_run_like_the_previous_one_is_about_the_same(tmp_path: Path) -> None:
    result = _changes(finished(tmp_path / "run"))
    assert result["images a second, per device"] == ("+0 %", "similar")
    assert result["share not ok"] == ("", "similar")


def test_two_nights_of_one_job_are_compared_without_help(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet", PROMPTS[:4])
    given = {"price_per_hour": 2.0, "gates": {"low_contrast": {"below": 0.5}}}
    nights = [
        job(prompts, str(tmp_path / "out"), run_id=night, **given) for night in ("first", "second")
    ]
    uris = [run(night, NoProgress(), Stop()).uri for night in nights]
    html = open_store(uris[1]).read(REPORT_KEY).decode()
    assert ">first</caption>" in html
    for figure in ("marked low_contrast", "cost of 1,000 images"):
        assert f'<th scope="row">{figure}</th>' in html


def test_the_share_of_time_computing_is_compared_where_both_runs_have_it(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    now, before = (replace(load_summary(store), usage=DeviceUsage(busy)) for busy in (0.9, 0.6))
    change = {each.name: each for each in compare_summaries(now, before)}["share of time computing"]
    assert (change.current, change.previous, change.judgment) == ("90 %", "60 %", "better")
    silent = replace(before, usage=DeviceUsage())
    assert "share of time computing" not in {each.name for each in compare_summaries(now, silent)}
