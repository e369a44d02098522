"""What Argo picks up of a run: its report, and how many images are ok."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runs.keys import REPORT_KEY, plot_key
from imagekiln.workflows.pod.artifact_store import read_artifact_store, require_answer
from imagekiln.workflows.pod.outputs import (
    copy_report,
    leave_report,
    write_aggregate_outputs,
    write_plan_outputs,
)
from imagekiln.workflows.pod.run_metrics import write_figures
from imagekiln.workflows.templates.child_workflows import MAX_PODS, PodSplit, split_pods
from tests.jobs import files
from tests.runs import finished, planned


def test_report_is_copied_with_the_files_it_refers_to_and_nothing_else(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    page = store.read(REPORT_KEY)
    plots = [plot_key("throughput"), plot_key("throughput", dark=True)]
    picture = b'<source srcset="throughput-dark.png"><img src="throughput.png">'
    store.replace(REPORT_KEY, page + picture + b'<a href="../plan.json">')
    for plot in plots:
        store.create(plot, b"a plot")
    report = files(tmp_path / "run" / "report")
    store.create("report/other.png", b"of an older page")
    copy_report(tmp_path / "copy", store)
    assert files(tmp_path / "copy" / "report") == report
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["report"]


def _template(folder: Path, endpoint: str, **settings: object) -> Path:
    """The template of a pod, as Argo 4.1 leaves it in the pod for its own program."""
    location = {"archiveLogs": False, "s3": {"endpoint": endpoint, "bucket": "reports", **settings}}
    file = folder / "template"
    file.write_text(json.dumps({"name": "publish-report", "archiveLocation": location}))
    return file


def test_report_is_left_for_a_store_that_answers(tmp_path: Path) -> None:
    run = finished(tmp_path / "run").uri
    with socket.create_server(("127.0.0.1", 0)) as store:
        endpoint = f"127.0.0.1:{store.getsockname()[1]}"
        sentence = leave_report(
            tmp_path / "outputs", run, _template(tmp_path, endpoint, insecure=True)
        )
    assert sentence == f"Argo keeps a copy of {run}/{REPORT_KEY} in http://{endpoint}/reports."
    assert (tmp_path / "outputs" / REPORT_KEY).is_file()


def test_store_out_of_reach_is_named_and_given_nothing(tmp_path: Path) -> None:
    run = finished(tmp_path / "run").uri
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(TryAgain) as error:
        leave_report(tmp_path / "outputs", run, _template(tmp_path, endpoint))
    assert str(error.value) == (
        f"https://{endpoint}/reports: Argo's artifact store does not answer (Connection refused). "
        f"Argo's page lacks the report, which is {run}/{REPORT_KEY}."
    )
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"archiveLocation": {"gcs": {}}}', "[]"])
def test_report_is_left_where_nothing_names_an_s3_store(tmp_path: Path, text: str) -> None:
    run = finished(tmp_path / "run").uri
    (tmp_path / "template").write_text(text)
    leave_report(tmp_path / "outputs", run, tmp_path / "template")
    assert (tmp_path / "outputs" / REPORT_KEY).is_file()


@pytest.mark.parametrize("run", [None, "run"])
def test_nothing_is_left_without_a_report(tmp_path: Path, run: str | None) -> None:
    uri = run and str(tmp_path / run)
    assert "no report" in leave_report(tmp_path / "outputs", uri, tmp_path / "template")
    assert not (tmp_path / "outputs").exists()


def test_number_of_good_images_is_an_output_of_aggregate(tmp_path: Path) -> None:
    summary = aggregate(finished(tmp_path / "run").uri)
    write_aggregate_outputs(tmp_path / "outputs", summary)
    assert (tmp_path / "outputs" / "ok").read_text() == str(summary.ok)
    assert summary.ok == summary.images > 0


@pytest.mark.parametrize("separate", [False, True])
def test_plan_says_whether_passes_have_pods_of_their_own(tmp_path: Path, separate: bool) -> None:
    passes: dict[str, Any] = {
        "passes": {"over": {"kind": "refine", "strength": 1.0}},
        "separate_passes": separate,
    }
    planned_run = planned(tmp_path, str(tmp_path / "out"), **passes)
    write_plan_outputs(tmp_path / "outputs", planned_run, planned_run.plan.job.cluster)
    assert (tmp_path / "outputs" / "stage").read_text() == ("draw" if separate else "all")


def test_run_with_a_long_id_has_a_label_that_kubernetes_takes(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), run_id="a" * 62 + "-" + "b" * 37)
    write_plan_outputs(tmp_path / "outputs", planned_run, planned_run.plan.job.cluster)
    assert (tmp_path / "outputs" / "run_id").read_text() == "a" * 62


def test_store_that_names_no_port_has_that_of_its_scheme(tmp_path: Path) -> None:
    for settings, port in (({}, 443), ({"insecure": True}, 80)):
        store = read_artifact_store(_template(tmp_path, "s3.example.com", **settings))
        assert store is not None
        assert (store.host, store.port) == ("s3.example.com", port)


def test_store_that_says_nothing_holds_no_pod_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(_address: tuple[str, int], timeout: float) -> socket.socket:
        assert timeout <= 10
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connect)
    store = read_artifact_store(_template(tmp_path, "s3.example.com"))
    assert store is not None
    with pytest.raises(TryAgain, match="does not answer"):
        require_answer(store)


def test_two_stages_make_a_workflow_full_with_half_the_shards() -> None:
    half = MAX_PODS // 2
    assert split_pods(half, stages=2) == PodSplit(half, half, 0)
    assert split_pods(half + 1, stages=2) == PodSplit(half + 1, 0, 1)
    assert split_pods(MAX_PODS) == PodSplit(MAX_PODS, MAX_PODS, 0)


def test_full_disk_is_worth_another_try(tmp_path: Path) -> None:
    (tmp_path / "ok").symlink_to("/dev/full")
    with pytest.raises(TryAgain, match="the disk is full"):
        write_aggregate_outputs(tmp_path, aggregate(finished(tmp_path / "run").uri))


def test_report_on_a_full_disk_is_worth_another_try(tmp_path: Path) -> None:
    run = finished(tmp_path / "run").uri
    page = tmp_path / "outputs" / REPORT_KEY
    page.parent.mkdir(parents=True)
    page.symlink_to("/dev/full")
    with pytest.raises(TryAgain, match="the disk is full"):
        leave_report(tmp_path / "outputs", run, tmp_path / "no-template")


def test_full_disk_hides_no_end_of_an_aggregation(tmp_path: Path) -> None:
    (tmp_path / "figures").symlink_to("/dev/full")
    write_figures(tmp_path, finished(tmp_path / "run").uri, None, is_counted=True)
