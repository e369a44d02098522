"""What Argo picks up of a run: its report, and how many images are ok."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.workflows.pod.outputs import (
    leave_report,
    write_parameters,
    write_plan_outputs,
)
from tests.jobs import files
from tests.runs import finished, planned


def test_report_is_left_for_argo_with_its_files_and_nothing_else(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    store.create("report/thumbnails/9999.png", b"a picture")
    sentence = leave_report(tmp_path / "outputs", store.uri)
    assert sentence == f"Argo keeps a copy of {store.uri}/{REPORT_KEY}."
    assert files(tmp_path / "outputs" / "report") == files(tmp_path / "run" / "report")
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["report"]


@pytest.mark.parametrize("run", [None, "run"])
def test_nothing_is_left_without_a_report(tmp_path: Path, run: str | None) -> None:
    uri = run and str(tmp_path / run)
    assert "no report" in leave_report(tmp_path / "outputs", uri)
    assert not (tmp_path / "outputs").exists()


def test_run_with_a_long_id_has_a_label_that_kubernetes_takes(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), run_id="a" * 62 + "-" + "b" * 37)
    write_plan_outputs(tmp_path / "outputs", planned_run, planned_run.plan.job)
    assert (tmp_path / "outputs" / "run_id").read_text() == "a" * 62


def test_full_disk_is_worth_another_try(tmp_path: Path) -> None:
    (tmp_path / "ok").symlink_to("/dev/full")
    with pytest.raises(TryAgain, match="the disk is full"):
        write_parameters(tmp_path, {"ok": "1"})
