"""The values of a run's metrics: numbers, however the run ended."""

import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagekiln.steps.aggregate.spending import UseAmounts
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.runs.account import Account, Spent
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY, SUMMARY_KEY, claims_key
from imagekiln.steps.runtime.log_events import ATTEMPT_VARIABLE
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.pod.run_metrics import EndedWorkflow, run_metric_values
from imagekiln.workflows.pod.spending_export import (
    CLAIMS_TYPE_ADAPTER,
    MAX_ENTRY_BYTES,
    Claims,
    SpendingExport,
)
from imagekiln.workflows.templates.metrics import (
    COST,
    GPU_USES,
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
    run.remove(SUCCESS_KEY)
    run.remove(SUMMARY_KEY)
    return run


def _aggregate(
    run: Store, *options: str, workflow: str = "a", attempt: int = 0
) -> dict[str, float]:
    """The figures that a try of a workflow's aggregation leaves."""
    folder = Path(run.uri).parent / "outputs"
    command = ["aggregate", "--outputs", str(folder), *options, "--workflow", workflow, run.uri]
    result = CliRunner(env={ATTEMPT_VARIABLE: str(attempt)}).invoke(main, command)
    assert result.exit_code == 0, result.output
    figures: dict[str, float] = json.loads((folder / "figures").read_text())
    return figures


def _begin(run: Store, workflow: str, attempt: int = 0) -> SpendingExport:
    return SpendingExport.begin(run.uri, workflow, str(attempt))


def _summary_of(run: Store, seconds: float) -> Summary:
    """The summary of the run, had it taken so many seconds, all for drawing."""
    summary = load_summary(run)
    gpu_seconds = UseAmounts(drawing=seconds)
    return replace(summary, spending=replace(summary.spending, gpu_seconds=gpu_seconds))


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


def test_claims_add_up_to_the_highest_total_whoever_is_first(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    run.create(claims_key(0), b"{}")  # that of a workflow before any summary
    summary = _summary_of(run, 100.0)
    slow, fast, late = (_begin(run, workflow) for workflow in "abc")
    assert _spent(fast.end(summary)) == pytest.approx(100)
    assert _spent(slow.end(_summary_of(run, 90.0))) == 0
    assert _spent(late.end(_summary_of(run, 110.0))) == pytest.approx(10)

    # A try whose figures are lost is repeated after another workflow has aggregated.
    assert _begin(run, "b", 1).end(summary) == fast.end(summary)
    assert _spent(_begin(run, "b", 2).end(_summary_of(run, 130.0))) == pytest.approx(120)
    # That workflow is retried as a whole: what it claimed has reached the counters.
    assert _spent(_begin(run, "b", 0).end(_summary_of(run, 131.0))) == pytest.approx(1)
    assert _spent(_begin(run, "b", 1).end(_summary_of(run, 131.0))) == pytest.approx(1)


def test_time_that_is_of_another_use_by_now_is_exported_once() -> None:
    claims = Claims().claim("a", {"drawing": 50.0, "idle": 50.0, COST: 10.0})
    claims = claims.claim("b", {"drawing": 115.0, "idle": 0.0, "repeated": 5.0, COST: 12.0})
    second = claims.by_workflow["b"]
    assert sum(second[use] for use in GPU_USES) == pytest.approx(20, abs=0.01)
    assert (second["idle"], second[COST]) == (0, 2)
    assert claims.claim("c", {"drawing": 115.0, "repeated": 5.0, COST: 12.0}) == claims


def test_what_rounding_left_of_a_claim_is_no_time() -> None:
    first = {"drawing": 4.8262, "loading": 11.7753, "idle": 6.0258, "repeated": 12.7735}
    later = {"drawing": 18.8211, "loading": 10.7069, "idle": 39.6808, "repeated": 39.9584}
    claims = Claims().claim("a", first).claim("b", later)
    assert claims.claim("c", later) == claims


def test_no_claim_is_lost_where_many_workflows_claim_at_once(
    tmp_path: Path, store_uri: str
) -> None:
    local_run = finished(tmp_path / "run")
    run = open_store(store_uri)
    for key in (PLAN_KEY, SUMMARY_KEY):
        run.create(key, local_run.read(key))
    run.create(claims_key(0), b"{}")
    summaries = [_summary_of(run, 10.0 * number) for number in range(1, 9)]

    def claim(number: int) -> float:
        return _spent(_begin(run, f"workflow-{number}").end(summaries[number]))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(8))) == pytest.approx(80)


HOSTILE = {
    "no JSON": b"\xff\0{",
    "negative": b'{"settled": {"drawing": -5}}',
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_damaged_claims_stop_no_aggregation(tmp_path: Path, content: bytes) -> None:
    run = _generated(tmp_path)
    run.create(claims_key(0), content)
    folder = tmp_path / "outputs"
    result = CliRunner().invoke(main, ["aggregate", "--outputs", str(folder), "--", run.uri])
    assert result.exit_code == 0, result.output
    (note,) = result.stderr.splitlines()
    assert "counters" in note
    assert "exported/000000.json: is damaged." in note
    figures = json.loads((folder / "figures").read_text())
    assert figures.keys() == set(IMAGE_STATUSES)


def test_claims_that_cannot_be_read_hide_no_failure(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"))
    Path(run.uri, claims_key(0)).mkdir(parents=True)  # which cannot be read
    folder = tmp_path / "outputs"
    for outputs in (folder, Path(run.uri, PLAN_KEY, "a")):  # the second is in no folder
        command = ["aggregate", "--outputs", str(outputs), "--", run.uri]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 3, result.output
        assert "counters" in result.stderr
        assert "are missing" in result.stderr


def test_amounts_that_cannot_be_true_are_not_claimed(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    export = _begin(run, "a")
    for seconds in (math.nan, math.inf, -5.0):
        assert export.end(_summary_of(run, seconds)) == {}
        export.problem = None
    assert not run.exists(claims_key(1))


def test_what_was_claimed_is_not_exported_again_where_that_could_not_be_read(
    tmp_path: Path,
) -> None:
    run = finished(tmp_path / "run")
    run.create(claims_key(0), b"{}")
    summary = _summary_of(run, 100.0)
    assert _spent(_begin(run, "a").end(summary)) == pytest.approx(100)
    export = SpendingExport(run.uri, "a", problem=TryAgain("the storage did not answer."))
    assert export.end(summary) == {}


def test_names_that_are_not_exported_are_dropped(tmp_path: Path) -> None:
    run = _generated(tmp_path)
    run.create(claims_key(0), b'{"by_workflow": {"a": {"ok": 9, "cost": 2}}}')
    figures = _aggregate(run, attempt=1)
    assert (figures["ok"], figures["cost"]) == (IMAGES, 2)
    entry = json.loads(run.read(claims_key(1)))
    assert entry["by_workflow"]["a"].keys() == {*GPU_USES, COST}


def test_an_entry_stays_small_however_many_workflows_claim() -> None:
    claims = Claims()
    for number in range(1000):
        claims = claims.claim(f"workflow-{number}", {COST: float(number)})
    content = CLAIMS_TYPE_ADAPTER.dump_json(claims, indent=1)
    assert len(content) < MAX_ENTRY_BYTES
    assert claims.claim("another", {COST: 999.0}) == claims


def test_a_try_that_leaves_a_summary_and_no_figures_takes_nothing_away(tmp_path: Path) -> None:
    run = _generated(tmp_path)
    _begin(run, "a")
    aggregated = CliRunner().invoke(main, ["aggregate", "--", run.uri])
    assert aggregated.exit_code == 0, aggregated.output
    assert _spent(_aggregate(run, attempt=1)) > 0


def test_images_of_a_run_that_was_not_aggregated_are_missing() -> None:
    for unset in ("{}", UNSET.figures, "", "[1]", '{"ok": "x"}'):
        values = _values(replace(ENDED, figures=unset))
        assert (values["ok"], values["missing"]) == ("0", "20")


def test_run_that_was_never_planned_has_numbers_too() -> None:
    values = _values(UNSET)
    assert values["job"] == "unknown"
    assert (values["seconds"], values["ok"], values["missing"]) == ("0", "0", "0")


def test_job_that_was_never_planned_is_named_by_its_workflow() -> None:
    labeled = replace(UNSET, labels=ENDED.labels)
    assert _values(labeled)["job"] == "of-the-label"
    assert _values(replace(labeled, job="unknown"))["job"] == "of-the-label"
    assert _values(replace(UNSET, labels='{"a": "b"}'))["job"] == "unknown"


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


def test_run_that_does_not_exist_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["aggregate", "--outputs", str(tmp_path / "outputs"), "--", str(run)]
    assert CliRunner().invoke(main, command).exit_code == 2
    assert not run.exists()
    assert not (tmp_path / "outputs").exists()
