"""Whole jobs, with a hook around each batch that is drawn."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.step import LazyDenoiser, generate_shard
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.bench.work import Work, make_job
from tests.faults import manifests

Check = Callable[[], None]
Draw: TypeAlias = Callable[[Sequence[ImageRow], int, Check], Sequence[DrawnImage]]
DrawHook = Callable[[Draw], Draw]  # returns the function to call instead


def plan_work(work: Work, folder: Path, numbers: Sequence[int] | None = None) -> str:
    """Plan the work as a job of one shard with prompts of these numbers; returns where it is."""
    job = make_job(work, folder, numbers)
    return make_plan(job).uri


def run_job(
    job: Job,
    hook: DrawHook,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> tuple[str, Summary]:
    """Plan, generate and aggregate a job of one shard; returns where it is, and its summary."""
    result = make_plan(job)
    generate_hooked(result.uri, hook, progress, stop)
    return result.uri, aggregate(result.uri)


def generate_hooked(
    uri: str, hook: DrawHook, progress: Progress | None = None, stop: Stop | None = None
) -> None:
    """Make the only shard of a planned run, every batch through the hook."""
    run = open_run(uri)
    store, plan = run.store, run.plan
    load_denoiser = hooked_loader(LazyDenoiser(store, plan), hook)
    stop = stop or Stop()
    with meter_attempt(run, plan, progress or NoProgress(), stop) as meter:
        generate_shard(store, plan, 0, load_denoiser, meter.progress, stop, record=meter.add_stats)


def hooked_loader(load: Callable[[], Denoiser], hook: DrawHook) -> Callable[[], Denoiser]:
    """A loader whose denoiser draws through the hook."""

    @cache
    def load_hooked() -> Denoiser:
        denoiser = load()
        vars(denoiser)["draw"] = hook(denoiser.draw)
        return denoiser

    return load_hooked


def image_bytes(uri: str) -> dict[int, bytes]:
    """The bytes of every image of a run, by its seed."""
    store = open_store(uri)
    images: dict[int, bytes] = {}
    for row in manifests(uri):
        part = store.read(row["part"])
        start = row["byte_offset"]
        end = start + row["byte_size"]
        images[row["seed"]] = part[start:end]
    return images
