"""The terms of a run: what its GPUs cost, what it may spend, and how many images may fail.

They are those of the latest submission, or prices given to `aggregate` after it, and no part of the
plan, so that a price can be corrected, and a budget or the accepted share of failures raised. Those
prices are an object of their own, so that to write them takes back no submission of that moment.
"""

from dataclasses import dataclass, field, replace
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, BudgetSpent, Missing
from imagekiln.steps.job.execution import BudgetSettings
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prices import PricePerHour, find_highest_price
from imagekiln.steps.runs.account import Spent
from imagekiln.steps.runs.keys import PRICES_KEY, TERMS_KEY
from imagekiln.steps.runtime.figures import format_money, format_number
from imagekiln.steps.storage.store import Store


@dataclass(frozen=True, slots=True)
class Terms:
    """The prices and the budget of a run, and the share of its images that may fail.

    Without that share, it is the one in the plan.
    """

    price_per_hour: PricePerHour | None = None
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    failed_share: float | None = None

    def find_excess(self, spent: Spent) -> str | None:
        """How far the budget is spent, as a clause; None where some of it is left."""
        gpu_hours = self.budget.gpu_hours
        if gpu_hours is not None and spent.gpu_hours >= gpu_hours:
            return _describe_hours(spent.gpu_hours, gpu_hours)
        cost = self.budget.cost
        if cost is not None:
            highest = find_highest_price(self.price_per_hour)
            spent_cost = spent.highest_cost(None if highest is None else highest.per_hour)
            if spent_cost >= cost:
                return _describe_cost(spent_cost, cost)
        return None

    def find_estimated_excess(self, gpu_hours: float, cost: float | None) -> str | None:
        """By how much an estimate exceeds the budget, as a clause; None where it does not."""
        limit = self.budget.gpu_hours
        if limit is not None and gpu_hours > limit:
            return _describe_hours(gpu_hours, limit)
        limit = self.budget.cost
        if limit is not None and cost is not None and cost > limit:
            return _describe_cost(cost, limit)
        return None


TERMS_TYPE_ADAPTER: TypeAdapter[Terms] = TypeAdapter(Terms)
PRICES_TYPE_ADAPTER: TypeAdapter[PricePerHour | None] = TypeAdapter(PricePerHour | None)
T = TypeVar("T")


def terms_of(job: Job) -> Terms:
    """The terms of a job."""
    return Terms(job.price_per_hour, job.budget, job.limits.failed_share)


def write_terms(store: Store, terms: Terms, planned: Job) -> None:
    """Write the terms of a run, in place of earlier ones, where its plan does not have them."""
    is_other_share = terms.failed_share != planned.limits.failed_share
    is_other_price = terms.price_per_hour != planned.price_per_hour
    has_budget = terms.budget.is_limited
    if has_budget or is_other_share or is_other_price or store.exists(TERMS_KEY):
        content = TERMS_TYPE_ADAPTER.dump_json(terms, indent=1)
        store.replace(TERMS_KEY, content + b"\n")
    if store.exists(PRICES_KEY):
        replace_prices(store, None)


def replace_prices(store: Store, prices: PricePerHour | None) -> None:
    """Let the run have these prices until it is submitted again; without any, those of its job."""
    store.replace(PRICES_KEY, PRICES_TYPE_ADAPTER.dump_json(prices, indent=1) + b"\n")


def read_terms(store: Store, planned: Job) -> Terms:
    """The terms of the run in `store`; without any, the price of the job that was planned."""
    terms = _read(store, TERMS_KEY, TERMS_TYPE_ADAPTER) or Terms(planned.price_per_hour)
    prices = _read(store, PRICES_KEY, PRICES_TYPE_ADAPTER)
    return terms if prices is None else replace(terms, price_per_hour=prices)


def _read(store: Store, key: str, adapter: TypeAdapter[T]) -> T | None:
    try:
        return adapter.validate_json(store.read(key))
    except Missing:
        return None
    except ValidationError as error:
        raise BadInput(
            f"{store.uri_of(key)}: is damaged. Delete it, and plan or submit the job again."
        ) from error


def budget_error(uri: str, excess: str) -> BudgetSpent:
    """That the run at `uri` has no budget left, and how to resume it."""
    return BudgetSpent(
        f"{uri}: the budget is spent: {excess}. Everything committed is kept. To resume, raise "
        "`budget` in the job, or by --set, and run or submit it again."
    )


def _describe_hours(gpu_hours: float, limit: float) -> str:
    return f"{format_number(gpu_hours)} GPU-hours, where budget.gpu_hours is {format_number(limit)}"


def _describe_cost(cost: float, limit: float) -> str:
    return f"cost {format_money(cost)}, where budget.cost is {format_money(limit)}"
