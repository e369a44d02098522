"""The terms of a run: those of the latest submission, whatever its plan says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import PRICES_KEY, TERMS_KEY
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.terms import read_terms, replace_prices
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from tests.runs import job, planned, write_prompts


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


class InterruptingStore(LocalStore):
    """Lets another process submit the job before the first write."""

    def __init__(self, uri: str, submit: Callable[[], object]) -> None:
        super().__init__(Path(uri))
        self._submissions = [submit]

    def replace(self, key: str, data: bytes) -> None:
        while self._submissions:
            self._submissions.pop()()
        super().replace(key, data)


def test_a_price_given_by_hand_takes_no_budget_back(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.parquet")
    output = str(tmp_path / "out")

    def submit(gpu_hours: float) -> str:
        budget = {"gpu_hours": gpu_hours}
        return make_plan(job(prompts, output, price_per_hour=2.0, budget=budget)).uri

    uri = submit(10.0)
    planned_job = load_plan(open_store(uri)).job
    store = InterruptingStore(uri, lambda: submit(60.0))
    replace_prices(store, 3.0)
    terms = read_terms(store, planned_job)
    assert (terms.budget.gpu_hours, terms.price_per_hour) == (60.0, 3.0)

    submit(60.0)
    assert read_terms(store, planned_job).price_per_hour == 2.0


@pytest.mark.parametrize("key", [TERMS_KEY, PRICES_KEY])
def test_damaged_terms_are_named(tmp_path: Path, key: str) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"))
    store = open_store(planned_run.uri)
    store.replace(key, b"[5")
    with pytest.raises(BadInput, match=f"{key}: is damaged"):
        read_terms(store, planned_run.plan.job)
