"""Control pictures that are encoded by each image's own noise, where diffusers takes it from all images' one source.

StableDiffusion3ControlNetPipeline passes no generator to the VAE's encoding, so an image would depend on its
neighbours and on what was drawn before it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, TypeAlias

import diffusers
import torch

Untyped: TypeAlias = Any  # diffusers has no types


@contextmanager
def per_image_control_noise(pipe: diffusers.DiffusionPipeline, generators: object) -> Iterator[None]:
    """Have the pipeline encode pictures by its images' generators for the length of the block, where it would not."""
    if not isinstance(pipe, diffusers.StableDiffusion3ControlNetPipeline) or not isinstance(generators, list):
        yield
        return
    encode = pipe.vae.encode
    pipe.vae.encode = _with_generators(encode, generators)
    try:
        yield
    finally:
        pipe.vae.encode = encode


def _with_generators(encode: Untyped, generators: Sequence[torch.Generator]) -> Untyped:
    @wraps(encode)
    def encoded(pictures: torch.Tensor) -> Untyped:
        found = encode(pictures)
        # With guidance, each picture comes twice: for the negative prompts, then for the others.
        each = [*generators] * (len(pictures) // len(generators))
        found.latent_dist.sample = partial(found.latent_dist.sample, each)
        return found

    return encoded
