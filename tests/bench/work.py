"""The work of the benchmarks, as a job or as a pipeline and its arguments."""

from dataclasses import dataclass
from itertools import cycle, islice
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


@dataclass(frozen=True, slots=True)
class Work:
    """A number of images of one model and shape, the same for every contender.

    `model` is the model as a job names it. `compile` and `fp8` say how Imagekiln runs it.
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


def prompts(count: int) -> list[str]:
    """Prompts that the bundled model knows, no two neighbours alike."""
    pairs = [(ink, ground) for ink in COLORS for ground in COLORS if ink != ground]
    return [
        f"a {ink} {SHAPES[number % len(SHAPES)]} on a {ground} background"
        for number, (ink, ground) in enumerate(islice(cycle(pairs), count))
    ]


def job(work: Work, folder: Path, first_seed: int = 0) -> Job:
    """The work as a job of one shard, with prompts and output in `folder`.

    Different seeds make it a different run.
    """
    rows = {
        "prompt": prompts(work.images),
        "seed": [first_seed + place for place in range(work.images)],
    }
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
            "shard": {"images": work.images},
            "device": work.device,
            "speed": {
                "compile": "on" if work.compile else "off",
                "quantization": "fp8" if work.fp8 else "none",
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
