"""The terms of a run: those of the latest submission, whatever its plan says."""

from pathlib import Path

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.commits import read_head
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.storage import open_store
from tests.runs import fill, job, write_prompts


def test_a_corrected_price_reaches_a_run_that_is_planned(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet")
    output = str(tmp_path / "out")
    uri = make_plan(job(prompts, output, price_per_hour=2.0)).uri
    assert read_head(open_store(uri)).number == -1  # the plan has them
    for price in (3.0, None, 2.0):
        adopted = make_plan(job(prompts, output, price_per_hour=price))
        assert adopted.adopted
        assert open_run(uri).terms.price_per_hour == price


def test_budget_raised_and_price_given_by_hand_lose_neither_each_other_nor_what_is_counted(
    tmp_path: Path,
) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet")
    output = str(tmp_path / "out")

    def submit(gpu_hours: float) -> None:
        budget = {"gpu_hours": gpu_hours}
        make_plan(job(prompts, output, price_per_hour=2.0, budget=budget))

    planned = make_plan(job(prompts, output, price_per_hour=2.0, budget={"gpu_hours": 10}))
    fill(planned)
    aggregate(planned.uri, price=3.0)
    counted = open_run(planned.uri)
    assert (counted.terms.budget.gpu_hours, counted.terms.price_per_hour) == (10, 3.0)

    submit(60.0)
    submitted = open_run(planned.uri)
    assert (submitted.terms.budget.gpu_hours, submitted.terms.price_per_hour) == (60.0, 2.0)
    assert submitted.is_finished
    assert submitted.head.commit.manifests == counted.head.commit.manifests
    number = submitted.head.number
    submit(60.0)
    assert open_run(planned.uri).head.number == number  # nothing changed
