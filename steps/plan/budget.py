"""What a run is expected to take and to cost, against its budget: before it begins or resumes."""

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.resolve import ResolvedModel
from imagekiln.steps.plan.draft import PlanDraft
from imagekiln.steps.plan.run_time import RunTime
from imagekiln.steps.runs.account import open_account
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runs.parts_to_make import has_parts_to_make
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run_rate import Expectation, find_earlier_rate, write_expectation
from imagekiln.steps.runs.terms import Terms, budget_error
from imagekiln.steps.storage.store import Store


def expect_run_time(
    model: ResolvedModel, draft: PlanDraft, gpu: str | None = None
) -> RunTime | None:
    """How long the draft takes: by earlier runs of the job, unless the job itself says so.

    Runs on another GPU than `gpu`, if that is known, count only where nothing else does.
    """
    job = model.job
    if job.shard.seconds_per_image is not None:
        return draft.time
    rate = find_earlier_rate(job, model.facts.digest, gpu)
    if rate is None or (rate.is_other_gpu and draft.time is not None):
        return draft.time
    shards = len(draft.sharding.shard_images)
    return RunTime(
        rate.gpu_hours(draft.work, shards),
        rate.source,
        shards=shards,
        device=rate.device,
        is_firm=rate.is_firm,
    )


def require_within_budget(
    job: Job,
    time: RunTime | None,
    terms: Terms,
    *,
    gpu: str | None = None,
    spot: bool = False,
) -> str | None:
    """Raise BadInput where the job is expected to exceed its budget.

    Where the GPU is unknown, it has the highest price. An unknown time exceeds nothing. Where the
    estimate rests on too little to refuse the job by it, by how much it exceeds the budget.
    """
    if time is None or not terms.budget.is_limited:
        return None
    price = terms.all_prices.find_or_highest(gpu or time.device, spot=spot)
    cost = None if price is None else time.gpu_hours * price.per_hour
    excess = terms.find_estimated_excess(time.gpu_hours, cost)
    if excess is not None and time.is_firm:
        raise BadInput(
            f"job {job.name}: exceeds its budget by the estimate: {excess} ({time.source}). Raise "
            "`budget`, or ask for fewer images or steps."
        )
    return excess


def require_budget_left(store: Store, plan: Plan, terms: Terms) -> None:
    """Raise BudgetSpent where a run that lacks images has spent its budget."""
    if not terms.budget.is_limited or store.exists(SUCCESS_KEY):
        return
    excess = terms.find_excess(open_account(store, plan).read())
    if excess is not None and has_parts_to_make(store, plan, range(len(plan.shards))):
        raise budget_error(store.uri, excess)


def record_expectation(
    store: Store, time: RunTime | None, terms: Terms, *, spot: bool = False
) -> None:
    """Write what a new run is expected to take, where that is known.

    The price is that of the GPU that the time was measured on; of the only one, if it is unknown.
    """
    if time is None:
        return
    price = terms.all_prices.find(time.device, spot=spot)
    cost = None if price is None else time.gpu_hours * price.per_hour
    write_expectation(store, Expectation(time.gpu_hours, time.source, cost))
