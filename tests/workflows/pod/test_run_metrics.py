"""The values of a run's metrics: numbers, however the run ended."""

import json
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod.run_metrics import find_summary, run_figures, run_metric_values
from imagekiln.workflows.templates.metrics import run_outputs
from tests.runs import IMAGES, fill, finished, not_ok, planned

SECONDS_PER_HOUR = 3600
NOW = 1_800_000_000.0
ENDED = {
    "IMAGEKILN_JOB_NAME": "postcards",
    "IMAGEKILN_IMAGES": "20",
    "IMAGEKILN_CREATED_AT": str(int(NOW) - 90),
    "IMAGEKILN_LABELS": '{"imagekiln.dev/job": "of-the-label"}',
}
# What the exit handler's pod has where planning failed or never came to pass.
UNSET = {
    "IMAGEKILN_JOB_NAME": "{{workflow.outputs.parameters.job_name}}",
    "IMAGEKILN_IMAGES": "{{workflow.outputs.parameters.images}}",
    "IMAGEKILN_FIGURES": "{{workflow.outputs.parameters.figures}}",
    "IMAGEKILN_LABELS": "{{workflow.labels.json}}",
    "IMAGEKILN_CREATED_AT": "{{workflow.creationTimestamp.s}}",
}


def _summary(tmp_path: Path) -> Summary:
    return load_summary(finished(tmp_path / "run"))


def _values(environment: dict[str, str]) -> dict[str, str]:
    values = run_metric_values(environment, NOW)
    assert set(values) == set(run_outputs())
    for name, text in values.items():
        assert name == "job" or float(text) >= 0
    return values


def test_metrics_of_a_run_are_those_of_its_summary(tmp_path: Path) -> None:
    summary = replace(_summary(tmp_path), price_per_hour=3600.0)
    figures = run_figures(None, summary)
    values = _values(ENDED | {"IMAGEKILN_FIGURES": json.dumps(figures)})
    assert values["job"] == "postcards"
    assert values["seconds"] == "90"
    assert float(values["ended_at"]) == NOW
    assert float(values["ok"]) == summary.ok == IMAGES
    assert values["missing"] == values["failed"] == "0"
    used = sum(float(values[use]) for use in ("drawing", "loading", "idle", "repeated"))
    assert abs(used - summary.device_seconds) < 0.01
    assert abs(float(values["cost"]) - summary.device_seconds) < 0.01


def test_what_an_earlier_aggregation_counted_is_not_counted_again(tmp_path: Path) -> None:
    summary = _summary(tmp_path)
    again = run_figures(summary, summary)
    assert again["ok"] == IMAGES
    assert (again["drawing"], again["loading"], again["idle"], again["cost"]) == (0, 0, 0, 0)
    twice = summary.spending.gpu_seconds.priced(2 * SECONDS_PER_HOUR)
    longer = replace(summary, spending=replace(summary.spending, gpu_seconds=twice))
    assert run_figures(summary, longer)["drawing"] == run_figures(None, summary)["drawing"] > 0


def test_images_of_a_run_that_was_not_aggregated_are_missing() -> None:
    for unset in ("{}", UNSET["IMAGEKILN_FIGURES"], "", "[1]", '{"ok": "x"}'):
        values = _values(ENDED | {"IMAGEKILN_FIGURES": unset})
        assert (values["ok"], values["missing"]) == ("0", "20")


def test_run_that_was_never_planned_has_numbers_too() -> None:
    values = _values(UNSET)
    assert values["job"] == "unknown"
    assert (values["seconds"], values["ok"], values["missing"]) == ("0", "0", "0")


def test_job_that_was_never_planned_is_named_by_its_workflow() -> None:
    label = {"IMAGEKILN_LABELS": ENDED["IMAGEKILN_LABELS"]}
    assert _values(UNSET | label)["job"] == "of-the-label"
    assert _values(UNSET | label | {"IMAGEKILN_JOB_NAME": "unknown"})["job"] == "of-the-label"
    assert _values(UNSET | {"IMAGEKILN_LABELS": '{"a": "b"}'})["job"] == "unknown"


def test_incomplete_run_leaves_figures_and_the_exit_handler_a_value_of_every_metric(
    tmp_path: Path,
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"))
    fill(run, {3: not_ok(3)})
    folder = tmp_path / "outputs"
    aggregated = CliRunner().invoke(main, ["aggregate", "--outputs", str(folder), "--", run.uri])
    assert aggregated.exit_code == 3, aggregated.output

    figures = (folder / "figures").read_text()
    ended = CliRunner(env=ENDED | {"IMAGEKILN_FIGURES": figures, "IMAGEKILN_STATUS": "Failed"})
    assert ended.invoke(main, ["outcome", "--outputs", str(folder)]).exit_code == 0
    values = {name: (folder / name).read_text() for name in run_outputs()}
    assert (values["ok"], values["failed"], values["missing"]) == ("19", "1", "0")


def test_run_without_a_summary_has_none(tmp_path: Path) -> None:
    assert find_summary(str(tmp_path / "nothing")) is None
    assert find_summary(planned(tmp_path, str(tmp_path / "out")).uri) is None
