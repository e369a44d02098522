"""The generate step of one shard. Until run and shard are checked, nothing imports PyTorch."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from importlib.util import find_spec
from typing import Literal

from imagekiln.steps.errors import BadInput, NotInstalled
from imagekiln.steps.generate.diffusion.startup import LoadOptions, Startup
from imagekiln.steps.generate.late_shards import can_help
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.metrics_server import serve_metrics
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.passes import Stage
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.shard import require_shard
from imagekiln.steps.runs.start_times import StartClock
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.libraries import limit_spinning
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store

# Of the extra `generate`: an installation without it plans and submits.
GENERATION_LIBRARIES = ("torch", "diffusers", "transformers")

StageChoice = Literal["all", "draw", "passes"]


def require_libraries(job: Job | None = None) -> None:
    """Raise NotInstalled where this installation cannot generate images, or those of this job.

    Where it can, prepare the process for them.
    """
    require_extra("generate", GENERATION_LIBRARIES, "to generate images")
    limit_spinning()
    if job is None:
        return
    if job.speed.quantization == "fp8":
        require_extra("fp8", ("torchao",), "for speed.quantization: fp8")
    if job.c2pa is not None:
        require_extra("c2pa", ("c2pa",), "to sign images")


def require_extra(extra: str, libraries: Sequence[str], purpose: str) -> None:
    """Raise NotInstalled where one of the extra's libraries is missing."""
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
    process_clock: StartClock | None = None,
    options: LoadOptions | None = None,
    helps: bool = False,
    stage: StageChoice = "all",
) -> ShardStats | None:
    """Make what is missing of one shard of the run at `uri`; None where nothing was missing.

    Where the job's passes are separate, `stage` may be one of the two stages alone.

    The model's files are hashed while PyTorch is imported. With `process_clock`, which began with
    the process, its start is in the log and in the statistics. With `helps`, and where the job
    allows it, it then makes parts of shards that other processes are late with.

    Raises BadInput where run, shard or model are not as planned, BudgetSpent where the run has
    spent its budget, TryAgain where the step was stopped or storage failed.
    """
    require_libraries()
    store = open_store(uri)
    plan = load_plan(store)
    require_shard(store, plan, number)
    stop = stop or Stop()
    age = 0.0 if process_clock is None else process_clock.elapsed
    stages = choose_stages(plan, stage, store.uri)
    # Hashing begins at once, unless nothing is drawn with the model.
    digest: Future[str] | None = None if plan.job.needs_drawing_model(stages) else Future()
    with (
        serve_metrics(progress or NoProgress(), plan, str(number), stages) as served_progress,
        meter_attempt(store, plan, served_progress, stop, shards=[number], age=age) as meter,
        Startup.begin(plan, process_clock, options, digest) as startup,
    ):
        meter.progress.start(plan.shards[number].images)
        with startup.clock.phase("imports"):
            from imagekiln.steps.generate.lazy_denoiser import LazyDenoiser
            from imagekiln.steps.generate.shard_stages import make_in_stages
            from imagekiln.steps.generate.step import generate_and_help

        timed_startup = startup if process_clock is not None else None
        if helps and can_help(plan):
            with closing(LazyDenoiser(store, plan, startup, meter.note_device)) as open_denoiser:
                place = (store, plan, number, open_denoiser)
                return generate_and_help(*place, meter.progress, stop, timed_startup)
        models = (startup, timed_startup, meter.note_device)
        return make_in_stages(store, plan, [number], stages, meter.progress, stop, *models)


def choose_stages(plan: Plan, stage: StageChoice, where: str) -> tuple[Stage, ...]:
    """The stages to do of a plan's shards. Raises BadInput where they are not made in stages."""
    if stage == "all":
        return plan.job.stages
    if stage not in plan.job.stages:
        raise BadInput(
            f"{where}: its job does not set separate_passes, so its shards are made in one go. "
            f"Leave out --stage {stage}."
        )
    return (stage,)
