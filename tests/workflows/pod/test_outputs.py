"""What Argo picks up of a run: its report, and how many images are ok."""

from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.workflows.pod.outputs import (
    copy_report,
    leave_report,
    write_aggregate_outputs,
    write_plan_outputs,
)
from tests.jobs import files
from tests.runs import finished, planned


def test_report_is_copied_with_the_files_it_refers_to_and_nothing_else(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    page = store.read(REPORT_KEY)
    picture = b'<img src="thumbnails/9999.png">'
    store.replace(REPORT_KEY, page + picture + b'<a href="../plan.json">')
    store.create("report/thumbnails/9999.png", b"a picture")
    report = files(tmp_path / "run" / "report")
    store.create("report/other.png", b"of an older page")
    copy_report(tmp_path / "copy", store)
    assert files(tmp_path / "copy" / "report") == report
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["report"]


def test_report_is_left_for_argo(tmp_path: Path) -> None:
    run = finished(tmp_path / "run").uri
    sentence = leave_report(tmp_path / "outputs", run)
    assert sentence == f"Argo keeps a copy of {run}/{REPORT_KEY}."
    assert (tmp_path / "outputs" / REPORT_KEY).is_file()


@pytest.mark.parametrize("run", [None, "run"])
def test_nothing_is_left_without_a_report(tmp_path: Path, run: str | None) -> None:
    uri = run and str(tmp_path / run)
    assert "no report" in leave_report(tmp_path / "outputs", uri)
    assert not (tmp_path / "outputs").exists()


def test_number_of_good_images_is_an_output_of_aggregate(tmp_path: Path) -> None:
    summary = aggregate(finished(tmp_path / "run").uri)
    write_aggregate_outputs(tmp_path / "outputs", summary)
    assert (tmp_path / "outputs" / "ok").read_text() == str(summary.ok)
    assert summary.ok == summary.images > 0


def test_run_with_a_long_id_has_a_label_that_kubernetes_takes(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), run_id="a" * 62 + "-" + "b" * 37)
    write_plan_outputs(tmp_path / "outputs", planned_run, planned_run.plan.job)
    assert (tmp_path / "outputs" / "run_id").read_text() == "a" * 62


def test_full_disk_is_worth_another_try(tmp_path: Path) -> None:
    (tmp_path / "ok").symlink_to("/dev/full")
    with pytest.raises(TryAgain, match="the disk is full"):
        write_aggregate_outputs(tmp_path, aggregate(finished(tmp_path / "run").uri))
