"""The whole job on this machine: plan, generate shard by shard with one loaded model, aggregate."""

from collections.abc import Callable
from dataclasses import dataclass

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run. `before` says that it was finished already, and nothing was done."""

    uri: str
    summary: Summary
    before: bool


def run(
    job: Job,
    progress: Progress | None = None,
    stop: Stop | None = None,
    planned: Callable[[PlanResult], None] = lambda _: None,
) -> RunResult:
    """Do what is left of the job. Raises what the steps raise; run again after TryAgain, it resumes.

    `planned` is told of the plan before the first image is made.
    """
    progress, stop = progress or NoProgress(), stop or Stop()
    there = make_plan(job)
    planned(there)
    store = open_store(there.uri)
    if store.exists(SUCCESS_KEY):
        return RunResult(there.uri, load_summary(store), before=True)
    # Only where pixels are made: torch takes seconds to import, and planning needs none of it.
    from imagekiln.steps.generate.step import denoiser_loader, generate_shard

    open_denoiser = denoiser_loader(store, there.plan)
    progress.start(there.plan.counts.images)
    for number in range(len(there.plan.shards)):
        generate_shard(store, there.plan, number, open_denoiser, progress, stop)
    progress.close()
    return RunResult(there.uri, aggregate(there.uri), before=False)
