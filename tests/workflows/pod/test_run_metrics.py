"""The values of a run's metrics: numbers, however the run ended."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.runs.attempts import AttemptFile, Spent
from imagekiln.steps.runs.keys import PLAN_KEY, commit_key
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod.outputs import EndedWorkflow, run_metric_values
from imagekiln.workflows.templates.metrics import (
    IMAGE_STATUSES,
    SPENT_FIGURES,
    run_outputs,
)
from tests.runs import IMAGES, encoded, fill, finished, not_ok, planned

NOW = 1_800_000_000.0
ENDED = EndedWorkflow(
    job="postcards",
    images="20",
    created_at=str(int(NOW) - 90),
    labels='{"imagekiln.dev/job": "of-the-label"}',
)
# What the exit handler's pod has where planning failed or never came to pass.
UNSET = EndedWorkflow(
    job="{{workflow.outputs.parameters.job_name}}",
    images="{{workflow.outputs.parameters.images}}",
    figures="{{workflow.outputs.parameters.figures}}",
    labels="{{workflow.labels.json}}",
    created_at="{{workflow.creationTimestamp.s}}",
)


def _generated(tmp_path: Path) -> Store:
    """A run that was generated and not aggregated."""
    run = finished(tmp_path / "run")
    run.remove(commit_key(0))
    return run


def _aggregate(run: Store, *options: str) -> dict[str, float]:
    """The figures that an aggregation in a pod leaves."""
    folder = Path(run.uri).parent / "outputs"
    command = ["aggregate", "--outputs", str(folder), *options, run.uri]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    figures: dict[str, float] = json.loads((folder / "figures").read_text())
    return figures


def _spent(figures: Mapping[str, float]) -> float:
    return sum(figures[name] for name in ("drawing", "loading", "idle", "repeated"))


def _values(ended: EndedWorkflow) -> dict[str, str]:
    values = run_metric_values(ended, NOW)
    assert set(values) == set(run_outputs())
    for name, text in values.items():
        assert name == "job" or float(text) >= 0
    return values


def test_metrics_of_a_run_are_those_of_its_summary(tmp_path: Path) -> None:
    run = _generated(tmp_path)
    figures = _aggregate(run, "--price", "3600")
    summary = load_summary(run)
    values = _values(replace(ENDED, figures=json.dumps(figures)))
    assert values["job"] == "postcards"
    assert values["seconds"] == "90"
    assert float(values["ended_at"]) == NOW
    assert float(values["ok"]) == summary.ok == IMAGES
    assert values["missing"] == values["failed"] == "0"
    used = sum(float(values[use]) for use in ("drawing", "loading", "idle", "repeated"))
    assert abs(used - summary.device_seconds) < 0.01
    assert abs(float(values["cost"]) - summary.device_seconds) < 0.01


def test_images_by_status_add_up_to_those_that_were_planned(tmp_path: Path) -> None:
    scores = {"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}}
    best = planned(tmp_path, str(tmp_path / "out"), scores=scores, keep="best 1 of 4 by seeds")
    winner = replace(encoded(), candidate_rank=1, scores={"seeds": 1.0})
    losers = {place: not_ok(place, "outscored") for place in range(80) if place % 4}
    fill(best, losers | dict.fromkeys(range(0, 80, 4), winner))
    figures = _aggregate(open_store(best.uri))
    values = _values(replace(ENDED, figures=json.dumps(figures)))
    assert (values["ok"], values["outscored"]) == ("20", "60")
    assert sum(float(values[status]) for status in IMAGE_STATUSES) == best.plan.counts.images


def test_counters_grow_by_what_was_spent_since_the_last_aggregation(tmp_path: Path) -> None:
    run = _generated(tmp_path)
    assert _spent(_aggregate(run)) > 0
    again = _aggregate(run)
    assert again["ok"] == IMAGES
    assert _spent(again) == 0
    attempt = AttemptFile(run, load_plan(run), 0)
    attempt.write(Spent(seconds=60.0, useful=60.0, attempts=1, ended=1), "complete")
    assert _spent(_aggregate(run)) == pytest.approx(60, abs=0.01)


def test_images_of_a_run_that_was_not_aggregated_are_missing() -> None:
    for unset in ("{}", UNSET.figures, "", "[1]", '{"ok": "x"}'):
        values = _values(replace(ENDED, figures=unset))
        assert (values["ok"], values["missing"]) == ("0", "20")


def test_run_that_was_never_planned_has_numbers_and_the_name_of_its_workflow() -> None:
    values = _values(UNSET)
    assert (values["seconds"], values["ok"], values["missing"]) == ("0", "0", "0")
    assert values["job"] == _values(replace(UNSET, labels='{"a": "b"}'))["job"] == "unknown"
    labeled = replace(UNSET, labels=ENDED.labels)
    for unnamed in (labeled, replace(labeled, job="unknown")):
        assert _values(unnamed)["job"] == "of-the-label"


def test_incomplete_run_leaves_figures_and_the_exit_handler_a_value_of_every_metric(
    tmp_path: Path,
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"))
    fill(run, {3: not_ok(3)})
    folder = tmp_path / "outputs"
    aggregated = CliRunner().invoke(main, ["aggregate", "--outputs", str(folder), "--", run.uri])
    assert aggregated.exit_code == 3, aggregated.output

    figures = (folder / "figures").read_text()
    command = ["outcome", "--outputs", str(folder), "--status=Failed", f"--figures={figures}"]
    assert CliRunner().invoke(main, [*command, "--images=20"]).exit_code == 0
    values = {name: (folder / name).read_text() for name in run_outputs()}
    assert (values["ok"], values["failed"], values["missing"]) == ("19", "1", "0")


def test_images_that_an_earlier_aggregation_counted_are_not_counted_again(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    run.replace(PLAN_KEY, b"{")
    folder = tmp_path / "outputs"
    aggregated = CliRunner().invoke(main, ["aggregate", "--outputs", str(folder), "--", run.uri])
    assert aggregated.exit_code == 2, aggregated.output
    assert json.loads((folder / "figures").read_text()).keys() == set(SPENT_FIGURES)
