"""Another round on this machine: what ended failed, blank or missing is made again, and the run accounted for anew."""

from collections.abc import Callable
from dataclasses import dataclass

from imagekiln.steps import names, plan, rounds
from imagekiln.steps import summary as summaries
from imagekiln.steps.aggregate import aggregate
from imagekiln.steps.next_round import plan_next_round
from imagekiln.steps.planning import PlanResult
from imagekiln.steps.progress import NoProgress, Progress
from imagekiln.steps.stop import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.summary import Summary


@dataclass(frozen=True, slots=True)
class RetryResult:
    """A run after a round: the round's number and how many images it held. Both are 0 where nothing was left."""

    uri: str
    round: int
    images: int
    summary: Summary


def retry(
    uri: str,
    progress: Progress | None = None,
    stop: Stop | None = None,
    planned: Callable[[PlanResult], None] = lambda _: None,
) -> RetryResult:
    """Make again what is not ok in the run at `uri`, but for what the safety checker filtered.

    Stopped and done again, it goes on with the same round. Raises what the steps raise: Incomplete where the run was
    never aggregated, or where too many images are not ok after the round.
    """
    progress, stop = progress or NoProgress(), stop or Stop()
    run, _ = rounds.resolve_run(uri)
    store = open_store(run)
    there = plan_next_round(store, plan.load_plan(store))
    if there is None:
        # A round that was finished by a retry killed just before the run was has nothing left, and the run no end.
        done = store.exists(names.SUCCESS_KEY)
        return RetryResult(store.uri, 0, 0, summaries.load_summary(store) if done else aggregate(store.uri))
    planned(PlanResult(there.plan, there.store.uri, adopted=False))
    # Only where pixels are made: torch takes seconds to import, and planning needs none of it.
    from imagekiln.steps.generate import denoiser_loader, generate_shard

    open_denoiser = denoiser_loader(there.store, there.plan)
    progress.start(there.plan.counts.images)
    for number in range(len(there.plan.shards)):
        generate_shard(there.store, there.plan, number, open_denoiser, progress, stop)
    progress.close()
    return RetryResult(store.uri, there.plan.round, there.plan.counts.images, aggregate(there.store.uri))
