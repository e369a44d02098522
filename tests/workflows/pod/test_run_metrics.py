"""The values of a run's metrics: numbers, however the run ended."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.runs.account import Account, Spent
from imagekiln.steps.runs.keys import EXPORTED_KEY, SUCCESS_KEY, SUMMARY_KEY
from imagekiln.steps.runtime.log_events import ATTEMPT_VARIABLE
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod.run_metrics import run_metric_values
from imagekiln.workflows.templates.metrics import WORKFLOW_UID_VARIABLE, run_outputs
from tests.runs import IMAGES, fill, finished, not_ok, planned

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


def _generated(tmp_path: Path) -> Store:
    """A run that was generated and not aggregated."""
    run = finished(tmp_path / "run")
    run.remove(SUCCESS_KEY)
    run.remove(SUMMARY_KEY)
    return run


def _aggregate(
    run: Store, *options: str, workflow: str = "a", attempt: int = 0
) -> dict[str, float]:
    """The figures that a try of a workflow's aggregation leaves."""
    folder = Path(run.uri).parent / "outputs"
    environment = {WORKFLOW_UID_VARIABLE: workflow, ATTEMPT_VARIABLE: str(attempt)}
    command = ["aggregate", "--outputs", str(folder), *options, "--", run.uri]
    result = CliRunner(env=environment).invoke(main, command)
    assert result.exit_code == 0, result.output
    figures: dict[str, float] = json.loads((folder / "figures").read_text())
    return figures


def _spent(figures: dict[str, float]) -> float:
    return sum(figures[name] for name in ("drawing", "loading", "idle", "repeated"))


def _values(environment: dict[str, str]) -> dict[str, str]:
    values = run_metric_values(environment, NOW)
    assert set(values) == set(run_outputs())
    for name, text in values.items():
        assert name == "job" or float(text) >= 0
    return values


def test_metrics_of_a_run_are_those_of_its_summary(tmp_path: Path) -> None:
    run = _generated(tmp_path)
    figures = _aggregate(run, "--price", "3600")
    summary = load_summary(run)
    values = _values(ENDED | {"IMAGEKILN_FIGURES": json.dumps(figures)})
    assert values["job"] == "postcards"
    assert values["seconds"] == "90"
    assert float(values["ended_at"]) == NOW
    assert float(values["ok"]) == summary.ok == IMAGES
    assert values["missing"] == values["failed"] == "0"
    used = sum(float(values[use]) for use in ("drawing", "loading", "idle", "repeated"))
    assert abs(used - summary.device_seconds) < 0.01
    assert abs(float(values["cost"]) - summary.device_seconds) < 0.01


def test_what_another_workflow_exported_is_not_exported_again(tmp_path: Path) -> None:
    run = _generated(tmp_path)
    first = _aggregate(run, workflow="a")
    assert _spent(first) > 0

    again = _aggregate(run, workflow="b")
    assert again["ok"] == IMAGES
    assert _spent(again) == 0

    Account(run).add(Spent(seconds=60.0, useful=60.0, attempts=1, ended=1))
    assert _spent(_aggregate(run, workflow="c")) == pytest.approx(60, abs=0.01)
    # Argo retries a workflow that failed: it has the same name, and has exported once.
    assert _spent(_aggregate(run, workflow="c")) == 0


def test_further_tries_export_what_the_first_one_did_not_bring_to_argo(tmp_path: Path) -> None:
    run = _generated(tmp_path)
    first = _aggregate(run, "--price", "3600")
    assert first["cost"] > 0
    assert _aggregate(run, "--price", "3600", attempt=1) == first
    assert _aggregate(run, "--price", "3600", attempt=2) == first
    assert _spent(_aggregate(run, "--price", "3600", workflow="b", attempt=1)) == 0


def test_what_versions_without_that_object_exported_is_in_the_summary(tmp_path: Path) -> None:
    run = _generated(tmp_path)
    _aggregate(run)
    run.remove(EXPORTED_KEY)
    assert _spent(_aggregate(run, workflow="b")) == 0


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


def test_run_that_does_not_exist_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["aggregate", "--outputs", str(tmp_path / "outputs"), "--", str(run)]
    assert CliRunner().invoke(main, command).exit_code == 2
    assert not run.exists()
    assert not (tmp_path / "outputs").exists()
