"""The contenders of the benchmarks: Imagekiln, bare loops and Ray Data make the same images.

Each runs in its own process and reports seconds from before the model is loaded to the end, without
imports. Rates are compared in the steady state, between the warm-up and the last batch.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from imagekiln.steps.runs.image import DrawnImage, ImageRow
from tests.bench.jobs import Check, Draw, run_job
from tests.bench.processes import in_child
from tests.bench.timeline import Phases, Timeline, find_phases
from tests.bench.work import Inputs, Untyped, Work, compiled, embedded, job, load, prompts, settings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds for a number of images, their phases, and the device's peak memory in bytes.

    `whole` is from before the model is loaded to the end, without imports.
    """

    images: int
    whole: float
    phases: Phases
    peak_memory: int | None = None

    @property
    def rate(self) -> float:
        """Images a second, loading and all included."""
        return self.images / self.whole


def run_bare(work: Work, _folder: Path) -> Took:
    """Time the denoise-and-decode loop alone.

    Prompts are encoded while the clock stands still, and images stay on the device.
    """
    started = time.perf_counter()
    pipe = load(work)
    if work.compile:
        compiled(pipe)
    loading = time.perf_counter() - started
    batches = list(_batches(pipe, work))
    timeline = Timeline(loading)
    for inputs in batches:
        pipe(**inputs, output_type="pt")
        timeline.mark(work.batch)
    return _took(work, timeline)


def run_naive(work: Work, folder: Path) -> Took:
    """The naive loop: one prompt after another, each image saved as a PNG."""
    timeline = Timeline()
    pipe = load(work)
    for seed, text in enumerate(prompts(work.images)):
        generator = torch.Generator().manual_seed(seed)
        pipe(text, generator=generator, **settings(work)).images[0].save(folder / f"{seed}.png")
        timeline.mark(1)
    return _took(work, timeline)


def run_imagekiln(work: Work, folder: Path) -> Took:
    """The whole job: plan, generate and aggregate, everything written."""
    if work.prepare is not None:
        work.prepare()
    whole_job = job(work, folder)
    timeline = Timeline()

    def marking(draw: Draw) -> Draw:
        def draw_and_mark(
            rows: Sequence[ImageRow], size: int, check: Check
        ) -> Sequence[DrawnImage]:
            images = draw(rows, size, check)
            timeline.mark(len(rows))
            return images

        return draw_and_mark

    _, summary = run_job(whole_job, marking)
    if summary.ok != work.images:
        raise ValueError(f"only {summary.ok} of {work.images} images are ok")
    return _took(work, timeline)


def _took(work: Work, timeline: Timeline) -> Took:
    whole, ends = timeline.stop()
    return Took(work.images, whole, find_phases(whole, ends), peak_memory())


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
    return Took(work.images, took, Phases(0.0, work.images / took, 0.0))


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


def measure(contender: str, work: Work, **environment: str) -> Took:
    """What one contender takes, in a process of its own that sees these variables too."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        return in_child(RUNNERS[contender], work, Path(folder), **environment)
