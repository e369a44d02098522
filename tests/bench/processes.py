"""Work in processes of their own, so that every contender starts alike.

Without CUDA, a server process imports torch and diffusers once and forks a child for each call,
which saves most of a trial's time. With CUDA, each child imports them itself: importing
`torch._dynamo` asks for the current device, after which no fork can use it.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import TypeVar

import torch

T = TypeVar("T")
PRELOAD = [
    "diffusers.pipelines.flux.pipeline_flux",
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion",
    "diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl",
    "imagekiln.steps.aggregate.step",
    "imagekiln.steps.generate.step",
    "tests.bench.contenders",
    "transformers.models.clip.modeling_clip",
    "transformers.models.clip.tokenization_clip",
    "transformers.models.t5.modeling_t5",
]


def in_child(work: Callable[..., T], *arguments: object, **environment: str) -> T:
    """The result of the work in a process of its own, whose environment has these variables too."""
    variables = dict(os.environ) | environment
    with ProcessPoolExecutor(1, mp_context=_context()) as pool:
        return pool.submit(_run, variables, work, arguments).result()


@cache
def _context() -> BaseContext:
    if torch.cuda.is_available():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _run(
    environment: Mapping[str, str], work: Callable[..., T], arguments: tuple[object, ...]
) -> T:
    os.environ.clear()
    os.environ.update(environment)
    return work(*arguments)
