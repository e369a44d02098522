"""The terms of a run: what its GPUs cost, what it may spend, and how many images may fail.

They are those of the latest submission, or prices given to `aggregate` after it. A commit has them
and not the plan, so that a price can be corrected, and a budget or the accepted share of failures
raised.
"""

from dataclasses import dataclass, field

from imagekiln.steps.errors import BudgetSpent
from imagekiln.steps.job.execution import BudgetSettings
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prices import PricePerHour, find_highest_price
from imagekiln.steps.runs.attempts import Spent
from imagekiln.steps.runtime.figures import format_money, format_number


@dataclass(frozen=True, slots=True)
class Terms:
    """The prices and the budget of a run, and the share of its images that may fail.

    Without that share, it is the one in the plan.
    """

    price_per_hour: PricePerHour | None = None
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    failed_share: float | None = None

    def find_excess(self, spent: Spent) -> str | None:
        """A clause about a spent budget; None if some of it is left."""
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
        """By how much an estimate exceeds the budget, as a clause; None if it does not."""
        limit = self.budget.gpu_hours
        if limit is not None and gpu_hours > limit:
            return _describe_hours(gpu_hours, limit)
        limit = self.budget.cost
        if limit is not None and cost is not None and cost > limit:
            return _describe_cost(cost, limit)
        return None


def terms_of(job: Job) -> Terms:
    """The terms of a job."""
    return Terms(job.price_per_hour, job.budget, job.limits.failed_share)


def budget_error(uri: str, excess: str) -> BudgetSpent:
    """The error for a run without budget left."""
    return BudgetSpent(
        f"{uri}: the budget is spent: {excess}. Everything committed is kept. To resume, raise "
        "`budget` in the job, or by --set, and run or submit it again."
    )


def _describe_hours(gpu_hours: float, limit: float) -> str:
    return f"{format_number(gpu_hours)} GPU-hours, where budget.gpu_hours is {format_number(limit)}"


def _describe_cost(cost: float, limit: float) -> str:
    return f"cost {format_money(cost)}, where budget.cost is {format_money(limit)}"
