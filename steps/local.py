"""Run or preview a whole job on this machine: plan, generate on its GPUs, aggregate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from imagekiln.steps.aggregate.preview import Preview, judge_first_shard
from imagekiln.steps.aggregate.step import aggregate, finish_run
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.export.step import ExportResult, export_run
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.metrics_server import serve_metrics
from imagekiln.steps.generate.start import require_libraries
from imagekiln.steps.generate.workers import choose_environments, make_shards
from imagekiln.steps.imaging.c2pa import C2paSigner
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.user_checks import require_entries
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.rewrite.step import prompt_rewriter
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import Run, open_run
from imagekiln.steps.runs.shard import count_committed_images
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage.store import Store

DEFAULT_PREVIEW_IMAGES = 24
LOADING = ("loading", "Loading the model ...")


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """A finished run. If `before`, it was finished already, and nothing was generated.

    `input_change` describes changes of the input since a named run was planned. `exports` are the
    results of the job's exports.
    """

    uri: str
    summary: Summary
    before: bool
    input_change: str | None = None
    exports: tuple[ExportResult, ...] = ()

    def __repr__(self) -> str:
        """Format without the summary, which would fill screens."""
        summary = self.summary
        return f"RunResult(uri={self.uri!r}, images={summary.images}, ok={summary.ok})"


def run(
    job: Job,
    progress: Progress | None = None,
    stop: Stop | None = None,
    planned: Callable[[PlanResult, int], None] = lambda _result, _workers: None,
    gpus: int | None = None,
) -> RunResult:
    """Run the remaining work of a job, and its exports.

    `planned` is called with the plan and the number of workers before generation starts. `gpus` is
    the number of GPUs to use, or of processes if the job's device is the CPU. Raises the errors of
    the steps. After TryAgain, call it again to resume.
    """
    progress = progress or NoProgress()
    result = _make_run(job, progress, stop or Stop(), planned, gpus)
    return replace(result, exports=export_run(job, result.uri, progress))


def _make_run(
    job: Job,
    progress: Progress,
    stop: Stop,
    planned: Callable[[PlanResult, int], None],
    gpus: int | None,
) -> RunResult:
    _require_dependencies(job)
    # Check devices first, so that a missing or unusable device leaves no plan behind.
    environments = choose_environments(job, gpus)
    result = make_plan(job, rewriter=prompt_rewriter(progress))
    change = result.input_change
    planned_run = open_run(result.uri)
    if planned_run.is_finished:
        planned(result, 1)
        return RunResult(result.uri, finish_run(planned_run), before=True, input_change=change)

    planned(result, len(environments))
    if not result.plan.shards:
        return RunResult(result.uri, aggregate(result.uri), before=False, input_change=change)
    try:
        if len(environments) == 1:
            shards = range(len(result.plan.shards))
            _generate_here(planned_run, shards, progress, stop)
        else:
            _generate_in_workers(planned_run, environments, progress, stop)
    except TryAgain as error:
        if stop.requested_at is None:
            raise
        raise _stopped_error(planned_run.store, result.plan) from error
    progress.close()
    return RunResult(result.uri, aggregate(result.uri), before=False, input_change=change)


def _require_dependencies(job: Job) -> None:
    """Raise BadInput if a library, function or key that the job names is missing.

    Otherwise it would be noticed only after planning and downloading a model.
    """
    require_libraries(job)
    require_entries(job)
    if job.c2pa is not None:
        C2paSigner(job.c2pa, job.encoding)


def _stopped_error(store: Store, plan: Plan) -> TryAgain:
    """Return the error for a stopped run, with the number of images left in all shards."""
    images = plan.counts.images
    left = images - count_committed_images(store, plan)
    return TryAgain(
        f"{store.uri}: was stopped with {left} of {pluralize(images, 'image')} left. "
        "Run the same command again to resume."
    )


def _generate_here(run: Run, shards: Sequence[int], progress: Progress, stop: Stop) -> None:
    """Generate shards in this process, with one loaded model."""
    progress.show_event(*LOADING)
    # Imported late, since importing torch takes seconds and planning does not need it.
    from imagekiln.steps.generate.step import generate_shards

    plan = run.plan
    with (
        serve_metrics(progress, plan),
        meter_attempt(run, plan, progress, stop, shards=shards) as meter,
    ):
        meter.progress.start(sum(plan.shards[number].images for number in shards))
        generate_shards(run.store, plan, shards, meter, stop)


def _generate_in_workers(
    run: Run,
    environments: Sequence[Mapping[str, str]],
    progress: Progress,
    stop: Stop,
) -> None:
    """Generate all shards with one process per environment."""
    progress.show_event(*LOADING)
    plan = run.plan
    with serve_metrics(progress, plan, in_workers=True) as variables:
        shards = range(len(plan.shards))
        all_variables = [{**environment, **variables} for environment in environments]
        make_shards(run, plan, shards, all_variables, progress, stop)


def preview(
    job: Job,
    images: int = DEFAULT_PREVIEW_IMAGES,
    progress: Progress | None = None,
    stop: Stop | None = None,
    planned: Callable[[PlanResult, int], None] = lambda _result, _workers: None,
) -> Preview:
    """Plan the job with a sample as its first shard, generate the sample, and write its page.

    The sample is part of the run. A later `run` or `submit` of the job generates the rest. Raises
    the errors of the steps, Incomplete if the sample fails the job's limits, and BadInput if the
    run was planned without a sample.
    """
    progress = progress or NoProgress()
    _require_dependencies(job)
    choose_environments(job, None)
    result = make_plan(job, sample_images=images, rewriter=prompt_rewriter(progress))
    plan = result.plan
    if not plan.shards:
        raise BadInput(f"{result.uri}: has no image to make, so there is nothing to show.")
    if not plan.sample_images:
        raise BadInput(
            f"{result.uri}: was planned without a sample, so a preview would have to make all "
            f"{plan.shards[0].images} images of its first shard. Choose another run_id, or run it."
        )
    planned(result, 1)
    _generate_here(open_run(result.uri), [0], progress, stop or Stop())
    progress.close()
    return judge_first_shard(result.uri)
