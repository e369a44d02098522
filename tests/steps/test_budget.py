"""A budget: refused before the run where the estimate exceeds it, and stopped during the run."""

import math
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, BudgetSpent, TryAgain
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.start import generate
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.local import run
from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.attempts import (
    AttemptFile,
    Spent,
    read_attempts,
    sum_charged,
    sum_spent,
)
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop, Stopped
from imagekiln.steps.storage import open_store
from tests.runs import IMAGES, fill, job, write_prompts, write_rate

NEXT_TO_NOTHING = {"gpu_hours": 1e-9}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.parquet")


def test_a_run_stops_at_its_budget_and_resumes_with_a_larger_one(
    prompts: Path, tmp_path: Path
) -> None:
    output = str(tmp_path / "out")
    limited = job(prompts, output, budget=NEXT_TO_NOTHING, price_per_hour=2.0)
    with pytest.raises(BudgetSpent, match="Everything committed is kept") as stopped:
        run(limited, NoProgress(), Stop())
    assert stopped.value.exit_code == 3  # which Argo does not retry

    (overview,) = list_runs(output)
    assert overview.state == "unfinished"
    assert overview.device_hours
    assert overview.cost == pytest.approx(2 * overview.device_hours)
    parts = len(list(Path(overview.uri).glob("images/*")))
    assert parts < IMAGES / 4

    with pytest.raises(BudgetSpent, match="where budget"):
        run(limited, NoProgress(), Stop())

    resumed = run(job(prompts, output, budget={"gpu_hours": 10}, price_per_hour=2.0))
    assert resumed.uri == overview.uri
    summary = resumed.summary
    assert (summary.ok, summary.missing) == (IMAGES, 0)
    assert summary.spending.attempts == 2
    assert summary.device_hours > overview.device_hours
    assert summary.cost == pytest.approx(2 * summary.device_hours)
    assert summary.spending.gpu_seconds.drawing > 0

    # The next run of the same job is estimated by this one, without what was repeated.
    seconds = summary.spending.gpu_seconds
    again = estimate(job(prompts, output, run_id="next", price_per_hour=2.0))
    assert again.time_source == f"measured by run {summary.run_id}, 20 images, on cpu"
    assert again.gpu_hours == pytest.approx((seconds.total - seconds.repeated) / 3600)
    assert again.cost == pytest.approx(2 * (again.gpu_hours or 0))


def test_the_part_at_hand_is_finished_before_a_run_stops(prompts: Path, tmp_path: Path) -> None:
    planned = make_plan(job(prompts, str(tmp_path / "out"), budget={"gpu_hours": 1}))
    opened = open_run(planned.uri)
    stop = Stop()
    an_hour = 3600.0

    def commit_part() -> None:
        with meter_attempt(opened, planned.plan, NoProgress(), stop, age=an_hour) as meter:
            meter.progress.add_committed(4)
            assert stop.requested_at is not None
            stop.raise_if_due(seconds_needed=600.0)  # to the end of a part
            with pytest.raises(Stopped):
                stop.raise_if_due(seconds_needed=math.inf)  # at the next part
            raise TryAgain("was stopped")

    with pytest.raises(BudgetSpent, match=r"1 GPU-hours, where budget\.gpu_hours is 1"):
        commit_part()
    spent = sum_spent(read_attempts(opened.store))
    assert (spent.attempts, spent.ended) == (1, 1)
    assert spent.seconds >= spent.useful >= an_hour


def test_a_process_that_is_killed_leaves_what_it_spent_and_is_charged_a_minute_more(
    prompts: Path, tmp_path: Path
) -> None:
    planned = make_plan(job(prompts, str(tmp_path / "out"), budget={"gpu_hours": 0.03}))
    opened = open_run(planned.uri)
    first = meter_attempt(opened, planned.plan, NoProgress(), Stop(), age=60.0)
    first.__enter__()  # and never ends
    attempts = read_attempts(opened.store)
    spent = sum_spent(attempts)
    assert (spent.attempts, spent.ended, spent.useful) == (1, 0, 0)
    assert spent.seconds >= 60
    assert sum_charged(attempts).seconds >= 120
    with (
        pytest.raises(BudgetSpent),
        meter_attempt(opened, planned.plan, NoProgress(), Stop()),
    ):
        raise AssertionError


def test_a_job_whose_estimate_exceeds_its_budget_is_not_planned(
    prompts: Path, tmp_path: Path
) -> None:
    shard = {"images": 8, "seconds_per_image": 360.0}
    limited = job(
        prompts,
        str(tmp_path / "out"),
        shard=shard,
        price_per_hour={"NVIDIA L4": 0.7, "NVIDIA H100": 2.5},
        budget={"cost": 4.9},
    )
    with pytest.raises(BadInput) as refused:
        make_plan(limited)
    message = str(refused.value)
    assert message.startswith("job tiny: exceeds its budget by the estimate: ")
    assert "cost 5.00, where budget.cost is 4.90" in message
    assert not (tmp_path / "out").exists()


def test_a_rate_of_few_images_or_of_another_device_refuses_no_job(
    prompts: Path, tmp_path: Path
) -> None:
    output = str(tmp_path / "out")
    limited = job(prompts, output, budget={"gpu_hours": 1e-3})
    write_rate(limited, "first", images=20, seconds_per_image=10.0)
    first = make_plan(limited)
    assert first.time is not None
    assert first.time.source == "measured by run first, 20 images, on cpu"
    assert first.over_budget is not None
    assert "where budget.gpu_hours is 0.001" in first.over_budget

    write_rate(limited, "second", images=80, seconds_per_image=10.0)
    renamed = limited.model_copy(update={"run_id": "again"})
    with pytest.raises(BadInput, match="measured by 2 runs, 100 images, on cpu"):
        make_plan(renamed)

    on_gpu = make_plan(renamed.model_copy(update={"device": "cuda"}))
    assert on_gpu.time is None


def test_a_budget_in_money_needs_a_price(prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        job(prompts, str(tmp_path / "out"), budget={"cost": 5})
    assert "has budget.cost and no price; set price_per_hour" in str(refused.value)


def test_neither_budget_nor_prices_change_the_run(prompts: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    plain = make_plan(job(prompts, output))
    same = make_plan(job(prompts, output, price_per_hour={"cpu": 1}, budget={"gpu_hours": 5}))
    assert same.uri == plain.uri
    assert same.adopted
    assert "budget" not in plain.plan.job.model_dump(mode="json")
    assert validate_job(plain.plan.job.model_dump(mode="json")) == plain.plan.job


def test_a_spent_budget_keeps_no_complete_run_from_its_end(prompts: Path, tmp_path: Path) -> None:
    limited = job(prompts, str(tmp_path / "out"), budget=NEXT_TO_NOTHING)
    planned = make_plan(limited)
    store = open_store(planned.uri)
    parts = fill(planned)
    spent = Spent(seconds=3600.0, useful=3600.0, attempts=1, ended=1)
    AttemptFile(store, planned.plan, 0).write(spent, "complete")
    last_shard = len(planned.plan.shards) - 1

    store.remove(parts[0].key)
    assert generate(planned.uri, last_shard) is None  # of which nothing is missing
    with pytest.raises(BudgetSpent):
        generate(planned.uri, 0)
    with pytest.raises(BudgetSpent):
        run(limited)

    fill(planned)
    finished = run(limited)
    assert (finished.summary.ok, finished.summary.missing) == (IMAGES, 0)
