"""The contenders of the benchmarks: Imagekiln, bare loops and Ray Data make the same images.

Each runs in its own process and reports seconds: `whole` from before the model is loaded to the
end, and `drawing` without one-time costs (loading, compiling, planning, aggregating). Neither
includes imports.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from imagekiln.steps.generate import step
from imagekiln.steps.local import run
from tests.bench.measure import apart
from tests.bench.work import Inputs, Untyped, Work, compiled, embedded, job, load, prompts, settings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds for a number of images, and the device's peak memory in bytes if it reports one."""

    images: int
    whole: float
    drawing: float
    peak_memory: int | None = None

    @property
    def rate(self) -> float:
        """Images a second, loading and all included."""
        return self.images / self.whole

    @property
    def drawing_rate(self) -> float:
        """Images a second once everything is loaded and compiled."""
        return self.images / self.drawing


def run_bare(work: Work, _folder: Path) -> Took:
    """Time the denoise-and-decode loop alone.

    Prompts are encoded before the clock starts, and images stay on the device.
    """
    started = time.perf_counter()
    pipe = load(work)
    if work.compile:
        compiled(pipe)
    loaded = time.perf_counter()
    batches = list(_batches(pipe, work))
    if work.compile or work.device == "cuda":  # whose libraries take seconds to start
        warming = time.perf_counter()
        _draw(pipe, batches[0])
        loaded += time.perf_counter() - warming
    begun = time.perf_counter()
    for inputs in batches:
        _draw(pipe, inputs)
    drawing = time.perf_counter() - begun
    return Took(work.images, loaded - started + drawing, drawing, peak_memory())


def _draw(pipe: Untyped, inputs: Inputs) -> None:
    pipe(**inputs, output_type="pt")
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_naive(work: Work, folder: Path) -> Took:
    """The naive loop: one prompt after another, each image saved as a PNG."""
    started = time.perf_counter()
    pipe = load(work)
    if work.device == "cuda":
        pipe(prompts(1)[0], **settings(work))  # the device's libraries take seconds to start
    begun = time.perf_counter()
    for seed, text in enumerate(prompts(work.images)):
        generator = torch.Generator().manual_seed(seed)
        pipe(text, generator=generator, **settings(work)).images[0].save(folder / f"{seed}.png")
    ended = time.perf_counter()
    return Took(work.images, ended - started, ended - begun, peak_memory())


def run_imagekiln(work: Work, folder: Path) -> Took:
    """The whole job: plan, generate and aggregate, everything written."""
    _ = step  # imported before the clock starts, as torch is in the other contenders
    whole_job = job(work, folder)
    started = time.perf_counter()
    result = run(whole_job)
    whole = time.perf_counter() - started
    if result.summary.ok != work.images:
        raise ValueError(f"only {result.summary.ok} of {work.images} images are ok")
    seconds = result.summary.seconds
    return Took(
        work.images,
        whole,
        seconds.total - seconds.load - seconds.compile,
        result.summary.usage.peak_memory,
    )


def run_ray(work: Work, folder: Path) -> Took:
    """The same batches as a Ray Data job that writes Parquet, without the start of Ray."""
    import ray

    from tests.bench.ray_job import write_dataset

    # Ray's workers import tests.bench too.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    started = time.perf_counter()
    write_dataset(prompts(work.images), work, folder / "ray")
    took = time.perf_counter() - started
    return Took(work.images, took, took)


RUNNERS = {"bare": run_bare, "naive": run_naive, "imagekiln": run_imagekiln, "ray": run_ray}


def _batches(pipe: Untyped, work: Work) -> Iterator[Inputs]:
    texts = prompts(work.images)
    for first in range(0, work.images, work.batch):
        some = texts[first : first + work.batch]
        generators = [torch.Generator().manual_seed(first + place) for place in range(len(some))]
        yield settings(work) | embedded(pipe, some) | {"generator": generators}


def peak_memory() -> int | None:
    """The most bytes allocated on the device."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def measure(contender: str, work: Work) -> Took:
    """What one contender takes, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        return apart(RUNNERS[contender], work, Path(folder))
