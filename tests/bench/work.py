"""The work of the benchmarks, as a job or as a pipeline and its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, TypeAlias

import diffusers
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers

from imagekiln.steps.generate.diffusion.compile import MAX_GRAPHS, CompiledPipeline
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.generate.diffusion.quantization import quantize_denoiser
from imagekiln.steps.generate.diffusion.vae import VaeDecoder
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.models.families import EmbeddingIndices, family_of
from imagekiln.steps.storage.uri import resolve_path
from tests.bench.random_models import SETTINGS

Untyped: TypeAlias = Any  # diffusers has no types to speak of
Inputs = dict[str, object]
COLORS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan", "white", "black")
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross")
COLOR_PAIRS = tuple(permutations(COLORS, 2))


@dataclass(frozen=True, slots=True)
class Work:
    """A number of images of one model and shape, the same for every contender.

    `model` is the model as a job names it. `compile`, `fp8`, `vae` and `part`, the images in a
    part, say how Imagekiln runs it; so do `guidance_interval` and `step_interval`, its shortcuts.
    """

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
    vae: str = "auto"
    part: int = 64
    guidance_interval: tuple[float, float] | None = None
    step_interval: int | None = None


def usual_work(name: str, **options: Untyped) -> Work:
    """The work of a model in its usual settings, but for the options that are not None.

    It has no images, and no model on disk, unless the options say so.
    """
    settings = SETTINGS[name]
    work = Work(
        model="",
        images=0,
        batch=settings.batch,
        side=settings.side,
        steps=settings.steps,
        guidance=settings.guidance,
    )
    changes = {option: value for option, value in options.items() if value is not None}
    return replace(work, **changes)


def prompts(count: int) -> list[str]:
    """Prompts of words that the bundled model knows, no two alike, so that each is encoded."""
    return [prompt(number) for number in range(count)]


def prompt(number: int) -> str:
    """The prompt of this number."""
    color, ground = COLOR_PAIRS[number % len(COLOR_PAIRS)]
    shape = SHAPES[number % len(SHAPES)]
    return f"a {color} {shape} on a {ground} background {number}"


def make_job(work: Work, folder: Path, numbers: Sequence[int] | None = None) -> Job:
    """The work as a job of one shard, with prompts and output in `folder`.

    `numbers` are those of its prompts, which are their seeds too; other ones make another run.
    """
    if numbers is None:
        numbers = range(work.images)
    prompts_path = folder / "prompts.parquet"
    rows = {"prompt": [prompt(number) for number in numbers], "seed": list(numbers)}
    pq.write_table(pa.table(rows), prompts_path)
    return validate_job(_job_settings(work, prompts_path, folder))


def _job_settings(work: Work, prompts_path: Path, output: Path) -> dict[str, object]:
    return {
        "name": "bench",
        "prompts": str(prompts_path),
        "output": str(output),
        "model": {"id": work.model, "dtype": work.dtype},
        "defaults": {
            "steps": work.steps,
            "guidance": work.guidance,
            "width": work.side,
            "height": work.side,
        },
        "batch": {"images": work.batch},
        "part": {"images": work.part},
        "shard": {"images": work.images},
        "device": work.device,
        "speed": {
            "compile": "on" if work.compile else "off",
            "quantization": "fp8" if work.fp8 else "none",
            "vae": work.vae,
            "guidance_interval": work.guidance_interval,
            "step_cache": None if work.step_interval is None else {"interval": work.step_interval},
        },
    }


def load_pipeline(work: Work) -> Untyped:
    """The pipeline, as its own documentation says to load it."""
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    pipe = diffusers.DiffusionPipeline.from_pretrained(
        resolve_path(work.model),
        dtype=getattr(torch, work.dtype),
        use_safetensors=True,
    )
    pipe.to(work.device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def run_as_jobs_do(pipe: Untyped, work: Work) -> None:
    """Compile and decode with a pipeline as a job of this work does, so that loops run its kernels.

    The first batch compiles.
    """
    torch.backends.cudnn.deterministic = True
    if pipe.device.type == "cuda":
        denoiser_network(pipe).to(memory_format=torch.channels_last)
    if work.fp8:
        quantize_denoiser(denoiser_network(pipe), "fp8")
    torch._dynamo.config.recompile_limit = MAX_GRAPHS
    CompiledPipeline(pipe, SpeedSettings(compile="on" if work.compile else "off"))
    VaeDecoder(pipe, "auto", lambda _width, _height: work.batch)


def compile_as_documented(pipe: Untyped) -> None:
    """Compile a pipeline as diffusers documents it: transformers by block, UNets whole."""
    if hasattr(pipe, "unet"):
        pipe.unet.to(memory_format=torch.channels_last).compile()
    else:
        pipe.transformer.compile_repeated_blocks()
    pipe.vae.to(memory_format=torch.channels_last)
    pipe.vae.decoder.compile()


def call_settings(work: Work) -> Inputs:
    """The settings of every call of a pipeline."""
    return {
        "num_inference_steps": work.steps,
        "guidance_scale": work.guidance,
        "width": work.side,
        "height": work.side,
    }


def embed_prompts(pipe: Untyped, texts: list[str]) -> Inputs:
    """The texts as the pipeline's own encoders embed them, with the empty negative prompt."""
    family = family_of(type(pipe).__name__)
    arguments: Inputs = {"device": pipe.device, "num_images_per_prompt": 1}
    if family.negative_embeds:
        arguments |= {"do_classifier_free_guidance": True, "negative_prompt": [""] * len(texts)}
    else:
        arguments["prompt_2"] = None
    with torch.no_grad():
        embeddings = pipe.encode_prompt(prompt=texts, **arguments)
    indices: EmbeddingIndices = {**family.positive_embeds, **family.negative_embeds}
    return {name: embeddings[index] for name, index in indices.items()}
