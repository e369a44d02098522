"""Work in fresh processes that need not import torch and diffusers again.

A server process imports them once, touches no device, and forks a child for each call: every
contender starts alike, with a device context and memory of its own, and imports cost a sitting at
a device nothing.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from typing import TypeVar

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
    """What the work gives, in a process of its own that sees these variables too."""
    everything = dict(os.environ) | environment
    with ProcessPoolExecutor(1, mp_context=_context()) as pool:
        return pool.submit(_run, everything, work, arguments).result()


@cache
def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _run(
    environment: Mapping[str, str], work: Callable[..., T], arguments: tuple[object, ...]
) -> T:
    os.environ.clear()
    os.environ.update(environment)
    return work(*arguments)
