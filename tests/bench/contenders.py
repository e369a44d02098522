"""What benchmarks set beside each other: the same images made by this program, by bare loops and by Ray Data.

Each runs in a process of its own and tells of seconds: `whole` from before the model is loaded to the end, and
`drawing` without what comes once: loading, compiling, planning, aggregating. Imports are left out of both.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import diffusers
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers

from imagekiln.steps import bundled, generate, run
from imagekiln.steps.families import Places, family
from imagekiln.steps.job import Job
from imagekiln.steps.jobfile import check_job
from tests.bench.measure import apart

Untyped: TypeAlias = Any  # diffusers has no types to speak of
Inputs = dict[str, object]
ROOT = Path(__file__).parents[2]
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan", "white", "black")
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross")


@dataclass(frozen=True, slots=True)
class Work:
    """What all make: so many images of one model and shape. `model` is its name for a job, `compile` and `fp8` ours."""

    model: str
    images: int
    batch: int
    side: int
    steps: int
    guidance: float
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False
    fp8: bool = False


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds, as the module says, for so many images; and the device's peak memory in bytes, where it tells."""

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


def prompts(count: int) -> list[str]:
    """Prompts that the bundled model knows, no two neighbours alike."""
    pairs = [(ink, ground) for ink in COLOURS for ground in COLOURS if ink != ground]
    return [
        f"a {pairs[i % len(pairs)][0]} {SHAPES[i % len(SHAPES)]} on a {pairs[i % len(pairs)][1]} background"
        for i in range(count)
    ]


def run_bare(work: Work, _folder: Path) -> Took:
    """The denoise-and-decode loop alone: texts were encoded before the clock starts, images stay on the device."""
    started = time.perf_counter()
    pipe = load(work)
    if work.compile:
        compiled(pipe)
    loaded = time.perf_counter()
    batches = list(_batches(pipe, work))
    if work.compile:
        compiling = time.perf_counter()
        _drawn(pipe, batches[0])
        loaded += time.perf_counter() - compiling
    begun = time.perf_counter()
    for inputs in batches:
        _drawn(pipe, inputs)
    drawing = time.perf_counter() - begun
    return Took(work.images, loaded - started + drawing, drawing, peak_memory())


def _drawn(pipe: Untyped, inputs: Inputs) -> None:
    pipe(**inputs, output_type="pt")
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_naive(work: Work, folder: Path) -> Took:
    """The loop that everybody writes first: a prompt at a time, each image saved as a PNG."""
    started = time.perf_counter()
    pipe = load(work)
    begun = time.perf_counter()
    for seed, text in enumerate(prompts(work.images)):
        generator = torch.Generator().manual_seed(seed)
        pipe(text, generator=generator, **settings(work)).images[0].save(folder / f"{seed}.png")
    ended = time.perf_counter()
    return Took(work.images, ended - started, ended - begun, peak_memory())


def run_imagekiln(work: Work, folder: Path) -> Took:
    """The whole job: plan, generate and aggregate, everything written."""
    _ = generate  # imported before the clock starts, as torch is in the other contenders
    asked = job(work, folder)
    started = time.perf_counter()
    done = run.run(asked)
    whole = time.perf_counter() - started
    if done.summary.ok != work.images:
        raise SystemExit(f"only {done.summary.ok} of {work.images} images are ok")
    seconds = done.summary.seconds
    return Took(work.images, whole, seconds.total - seconds.load - seconds.compile, done.summary.usage.peak_memory)


def run_ray(work: Work, folder: Path) -> Took:
    """The same batches as a Ray Data job that writes Parquet: seconds, Ray's own start left out."""
    import ray

    from tests.bench.ray_job import write_dataset

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # for its workers
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    started = time.perf_counter()
    write_dataset(prompts(work.images), work, folder / "ray")
    took = time.perf_counter() - started
    return Took(work.images, took, took)


RUNNERS = {"bare": run_bare, "naive": run_naive, "imagekiln": run_imagekiln, "ray": run_ray}


def job(work: Work, folder: Path, first_seed: int = 0) -> Job:
    """The work as a job in one shard, its prompts in `folder` and its output too. Other seeds make it another run."""
    rows = {"prompt": prompts(work.images), "seed": [first_seed + place for place in range(work.images)]}
    pq.write_table(pa.table(rows), folder / "prompts.parquet")
    return check_job(
        {
            "name": "bench",
            "prompts": str(folder / "prompts.parquet"),
            "output": str(folder),
            "model": {"id": work.model, "dtype": work.dtype},
            "defaults": {"steps": work.steps, "guidance": work.guidance, "width": work.side, "height": work.side},
            "batch": {"images": work.batch},
            "shard": {"images": work.images},
            "device": work.device,
            "speed": {
                "compile": "on" if work.compile else "off",
                "quantisation": "fp8" if work.fp8 else "none",
            },
        }
    )


def load(work: Work) -> Untyped:
    """The pipeline, as its own documentation says to load it."""
    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()
    folder, dtype = bundled.local(work.model), getattr(torch, work.dtype)
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder, dtype=dtype, use_safetensors=True).to(work.device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def compiled(pipe: Untyped) -> None:
    """Compile a pipeline as diffusers' documentation says to: transformers by block, UNets whole."""
    if hasattr(pipe, "unet"):
        pipe.unet.to(memory_format=torch.channels_last).compile()
    else:
        pipe.transformer.compile_repeated_blocks()
    pipe.vae.to(memory_format=torch.channels_last)
    pipe.vae.decoder.compile()


def settings(work: Work) -> Inputs:
    """What every call is asked for."""
    return {
        "num_inference_steps": work.steps,
        "guidance_scale": work.guidance,
        "width": work.side,
        "height": work.side,
    }


def embedded(pipe: Untyped, texts: list[str]) -> Inputs:
    """The texts as the pipeline's own encoders embed them, with the empty negative prompt."""
    told, known = family(type(pipe).__name__), {"device": pipe.device, "num_images_per_prompt": 1}
    guided = {"do_classifier_free_guidance": True, "negative_prompt": [""] * len(texts)} if told.negative else {}
    with torch.no_grad():
        found = pipe.encode_prompt(prompt=texts, **({} if guided else {"prompt_2": None}), **known, **guided)
    places: Places = {**told.positive, **told.negative}
    return {name: found[place] for name, place in places.items()}


def _batches(pipe: Untyped, work: Work) -> Iterator[Inputs]:
    texts = prompts(work.images)
    for first in range(0, work.images, work.batch):
        some = texts[first : first + work.batch]
        generators = [torch.Generator().manual_seed(first + place) for place in range(len(some))]
        yield settings(work) | embedded(pipe, some) | {"generator": generators}


def peak_memory() -> int | None:
    """The most bytes that the device held."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


def measure(contender: str, work: Work) -> Took:
    """What one contender takes, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        return apart(RUNNERS[contender], work, Path(folder))
