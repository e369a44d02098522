"""What Argo picks up of a run: its report, and how many images are ok."""

from pathlib import Path

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.runs.keys import REPORT_KEY, plot_key
from imagekiln.workflows.pod.outputs import copy_report, write_aggregate_outputs
from tests.jobs import files
from tests.runs import finished


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
    copy_report(tmp_path / "copy", store.uri)
    assert files(tmp_path / "copy" / "report") == report
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["report"]


def test_nothing_is_copied_without_a_report(tmp_path: Path) -> None:
    copy_report(tmp_path / "copy", str(tmp_path / "nothing"))
    assert not (tmp_path / "copy").exists()


def test_number_of_good_images_is_an_output_of_aggregate(tmp_path: Path) -> None:
    summary = aggregate(finished(tmp_path / "run").uri)
    write_aggregate_outputs(tmp_path / "outputs", summary)
    assert (tmp_path / "outputs" / "ok").read_text() == str(summary.ok)
    assert summary.ok == summary.images > 0
