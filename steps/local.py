"""The whole job on this machine: plan, generate shard by shard with one loaded model, aggregate."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.generate.start import require_libraries
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run. `before`: it had been finished already, and nothing was done."""

    uri: str
    summary: Summary
    before: bool


def run(
    job: Job,
    progress: Progress | None = None,
    stop: Stop | None = None,
    planned: Callable[[PlanResult], None] = lambda _: None,
) -> RunResult:
    """Do what is left of the job. Raises what the steps raise; after TryAgain, run it to resume.

    `planned` is called with the plan before the first image is made.
    """
    progress = progress or NoProgress()
    stop = stop or Stop()
    require_libraries(job)
    result = make_plan(job)
    planned(result)

    store = open_store(result.uri)
    if store.exists(SUCCESS_KEY):
        return RunResult(result.uri, load_summary(store), before=True)

    # Imported only where pixels are made: torch takes seconds to import, and planning needs none.
    from imagekiln.steps.generate.step import LazyDenoiser, generate_shard

    progress.start(result.plan.counts.images)
    with closing(LazyDenoiser(store, result.plan)) as open_denoiser:
        for number in range(len(result.plan.shards)):
            generate_shard(store, result.plan, number, open_denoiser, progress, stop)
    progress.close()
    return RunResult(result.uri, aggregate(result.uri), before=False)
