"""The generate step of one shard. PyTorch is imported only after run and shard are checked."""

from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec

from imagekiln.steps.errors import NotInstalled
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.metrics_server import serve_metrics
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.facts import WeightsCheck
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runs.shard import require_shard
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.machine import limit_spinning
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop

# In the extra `generate`: an installation without it can plan and submit.
GENERATION_LIBRARIES = ("torch", "diffusers", "transformers")


def require_libraries(job: Job | None = None) -> None:
    """Raise NotInstalled if libraries to generate images, or those of this job, are missing.

    Otherwise prepare the process for PyTorch.
    """
    require_extra("generate", GENERATION_LIBRARIES, "to generate images")
    limit_spinning()
    if job is None:
        return
    if job.speed.quantization != "none":
        require_extra("fp8", ("torchao",), f"for speed.quantization: {job.speed.quantization}")
    if job.c2pa is not None:
        require_extra("c2pa", ("c2pa",), "to sign images")


def require_extra(extra: str, libraries: Sequence[str], purpose: str) -> None:
    """Raise NotInstalled if one of the extra's libraries is missing."""
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"{', '.join(missing)}: not installed, and needed {purpose}. "
            f"Type: pip install 'imagekiln[{extra}]'."
        )


def generate(
    uri: str,
    number: int,
    progress: Progress | None = None,
    stop: Stop | None = None,
    *,
    age: float = 0.0,
    helps: bool = False,
) -> ShardStats | None:
    """Generate the missing parts of one shard of the run at `uri`; return None if there are none.

    The process started `age` seconds ago. With `helps`, it then helps late shards.

    Raises BadInput if run, shard or model are not as planned, BudgetSpent if the run has spent its
    budget, TryAgain if the step was stopped or storage failed.
    """
    require_libraries()
    run = open_run(uri)
    store = run.store
    plan = run.addressed_plan
    require_shard(store, plan, number)
    progress = progress or NoProgress()
    stop = stop or Stop()
    with (
        serve_metrics(progress, plan, str(number)),
        meter_attempt(run, plan, progress, stop, shards=[number], age=age) as meter,
        WeightsCheck(plan.job.model, plan.model.digest) as weights,
    ):
        meter.progress.start(plan.shards[number].images)
        from imagekiln.steps.generate.step import LazyDenoiser, generate_and_help

        with closing(LazyDenoiser(store, plan, weights, meter.note_device)) as open_denoiser:
            return generate_and_help(store, plan, number, open_denoiser, meter, stop, helps=helps)
