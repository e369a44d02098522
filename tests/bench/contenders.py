"""The contenders of the benchmarks: Imagekiln, bare loops and Ray Data make the same images.

Each runs in its own process and reports seconds from before the model is loaded to the end, without
imports. Rates are compared in the steady state, between the warm-up and the last batch.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.stats import ShardStats
from tests.bench.jobs import Check, Draw, DrawHook, run_job
from tests.bench.measure import scratch_folder
from tests.bench.processes import in_child
from tests.bench.timeline import Phases, Timeline, find_phases
from tests.bench.work import (
    Inputs,
    Untyped,
    Work,
    call_settings,
    compile_as_documented,
    embed_prompts,
    load_pipeline,
    make_job,
    prompts,
    run_as_jobs_do,
)
from tests.runs import stats_of

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Performance:
    """Seconds for a number of images, their phases, and the device's peak memory in bytes.

    `whole` is from before the model is loaded to the end, without imports. `stats` are those of a
    job's only shard.
    """

    images: int
    whole: float
    phases: Phases
    peak_memory: int | None = None
    stats: ShardStats | None = None

    @property
    def rate(self) -> float:
        """Images a second, loading and all included."""
        return self.images / self.whole

    @property
    def steady_rate(self) -> float:
        """Images a second in the steady state."""
        return self.phases.steady_rate


def run_bare(work: Work, _folder: Path) -> Performance:
    """Time the denoise-and-decode loop alone, compiled and decoded as a job is.

    Prompts are encoded while the clock stands still, and images stay on the device.
    """
    return _run_loop(work, lambda pipe: run_as_jobs_do(pipe, work))


def run_documented(work: Work, _folder: Path) -> Performance:
    """Time the same loop, compiled as diffusers documents it."""
    return _run_loop(work, compile_as_documented if work.compile else lambda _pipe: None)


def _run_loop(work: Work, prepare: Callable[[Untyped], None]) -> Performance:
    started = time.perf_counter()
    pipe = load_pipeline(work)
    prepare(pipe)
    loading = time.perf_counter() - started

    batches = list(_batches(pipe, work))
    timeline = Timeline(loading)
    for inputs in batches:
        pipe(**inputs, output_type="pt")
        timeline.mark(work.batch)
    return _performance(work, timeline)


def run_naive(work: Work, folder: Path) -> Performance:
    """The naive loop: one prompt after another, each image saved as a PNG."""
    timeline = Timeline()
    pipe = load_pipeline(work)
    settings = call_settings(work)
    for seed, text in enumerate(prompts(work.images)):
        result = pipe(text, generator=seeded(seed), **settings)
        result.images[0].save(folder / f"{seed}.png")
        timeline.mark(1)
    return _performance(work, timeline)


def run_imagekiln(work: Work, folder: Path) -> Performance:
    """The whole job: plan, generate and aggregate, everything written."""
    job = make_job(work, folder)
    timeline = Timeline()
    uri, summary = run_job(job, marking_hook(timeline))
    if summary.ok != work.images:
        raise ValueError(f"only {summary.ok} of {work.images} images are ok")
    return replace(_performance(work, timeline), stats=stats_of(uri))


def marking_hook(timeline: Timeline) -> DrawHook:
    """A hook that marks the end of each batch."""

    def hook(draw: Draw) -> Draw:
        def draw_and_mark(
            rows: Sequence[ImageRow], size: int, check: Check
        ) -> Sequence[DrawnImage]:
            images = draw(rows, size, check)
            timeline.mark(len(rows))
            return images

        return draw_and_mark

    return hook


def _performance(work: Work, timeline: Timeline) -> Performance:
    whole, ends = timeline.stop()
    phases = find_phases(whole, ends)
    return Performance(work.images, whole, phases, peak_memory())


def run_ray(work: Work, folder: Path) -> Performance:
    """The same batches as a Ray Data job that writes Parquet, without the start of Ray."""
    import ray

    from tests.bench.ray_job import write_dataset

    # Ray's workers import tests.bench too.
    search_path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(search_path)
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)

    started = time.perf_counter()
    write_dataset(prompts(work.images), work, folder / "ray")
    whole = time.perf_counter() - started
    phases = Phases(head=0.0, steady_rate=work.images / whole, tail=0.0)
    return Performance(work.images, whole, phases)


RUNNERS = {
    "bare": run_bare,
    "bare-documented": run_documented,
    "naive": run_naive,
    "imagekiln": run_imagekiln,
    "ray": run_ray,
}


def _batches(pipe: Untyped, work: Work) -> Iterator[Inputs]:
    """The inputs of each call: settings, embeddings, and a generator for each image."""
    texts = prompts(work.images)
    settings = call_settings(work)
    for first in range(0, work.images, work.batch):
        batch = texts[first : first + work.batch]
        seeds = range(first, first + len(batch))
        generators = [seeded(seed) for seed in seeds]
        yield {
            **settings,
            **embed_prompts(pipe, batch),
            "generator": generators,
        }


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU with this seed."""
    return torch.Generator().manual_seed(seed)


def peak_memory() -> int | None:
    """The most bytes allocated on the device; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.max_memory_allocated()


def measure(contender: str, work: Work, **environment: str) -> Performance:
    """The performance of a contender, in a process of its own with these variables too."""
    with scratch_folder() as folder:
        return in_child(RUNNERS[contender], work, folder, **environment)
