"""The work of the benchmarks, as a job or as a pipeline and its arguments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import diffusers
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.models.families import EmbeddingIndices, family_of
from imagekiln.steps.storage.uri import resolve_path

Untyped: TypeAlias = Any  # diffusers has no types to speak of
Inputs = dict[str, object]
COLORS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan", "white", "black")
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross")
COLOR_PAIRS = [pair for pair in product(COLORS, COLORS) if len({*pair}) == 2]


@dataclass(frozen=True, slots=True)
class Work:
    """A number of images of one model and shape, the same for every contender.

    `model` is the model as a job names it. `compile`, `fp8`, `vae` and `part`, the images in a
    part, say how Imagekiln runs it. `prepare` is called before the job, in its process.
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
    prepare: Callable[[], None] | None = None


def prompts(count: int) -> list[str]:
    """Prompts of words that the bundled model knows, no two alike, so that each is encoded."""
    return [prompt(number) for number in range(count)]


def prompt(number: int) -> str:
    """The prompt of this number."""
    color, ground = COLOR_PAIRS[number % len(COLOR_PAIRS)]
    shape = SHAPES[number % len(SHAPES)]
    return f"a {color} {shape} on a {ground} background {number}"


def job(work: Work, folder: Path, numbers: Sequence[int] | None = None) -> Job:
    """The work as a job of one shard, with prompts and output in `folder`.

    `numbers` are those of its prompts, which are their seeds too; other ones make another run.
    """
    numbers = range(work.images) if numbers is None else numbers
    rows = {"prompt": [prompt(number) for number in numbers], "seed": list(numbers)}
    pq.write_table(pa.table(rows), folder / "prompts.parquet")
    return validate_job(
        {
            "name": "bench",
            "prompts": str(folder / "prompts.parquet"),
            "output": str(folder),
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
            },
        }
    )


def load(work: Work) -> Untyped:
    """The pipeline, as its own documentation says to load it."""
    for library in (diffusers, transformers):
        library.utils.logging.disable_progress_bar()
    folder, dtype = resolve_path(work.model), getattr(torch, work.dtype)
    pipe = diffusers.DiffusionPipeline.from_pretrained(
        folder, dtype=dtype, use_safetensors=True
    ).to(work.device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def compiled(pipe: Untyped) -> None:
    """Compile a pipeline as diffusers documents it: transformers by block, UNets whole."""
    if hasattr(pipe, "unet"):
        pipe.unet.to(memory_format=torch.channels_last).compile()
    else:
        pipe.transformer.compile_repeated_blocks()
    pipe.vae.to(memory_format=torch.channels_last)
    pipe.vae.decoder.compile()


def settings(work: Work) -> Inputs:
    """The settings of every call."""
    return {
        "num_inference_steps": work.steps,
        "guidance_scale": work.guidance,
        "width": work.side,
        "height": work.side,
    }


def embedded(pipe: Untyped, texts: list[str]) -> Inputs:
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
