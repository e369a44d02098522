"""The terms of a run: those of the latest submission, whatever its plan says."""

from pathlib import Path

from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import TERMS_KEY
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.terms import read_terms
from imagekiln.steps.storage import open_store
from tests.runs import job, write_prompts


def test_a_corrected_price_reaches_a_run_that_is_planned(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet")
    output = str(tmp_path / "out")

    planned = make_plan(job(prompts, output, price_per_hour=2.0))
    store = open_store(planned.uri)
    assert not store.exists(TERMS_KEY)  # the plan has them

    for price in (3.0, None, 2.0):
        adopted = make_plan(job(prompts, output, price_per_hour=price))
        assert adopted.adopted
        assert read_terms(store, load_plan(store).job).price_per_hour == price
