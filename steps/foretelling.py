"""Steps that are foretold from those before instead of computed: TaylorSeer, on a schedule.

Liu et al. 2025, https://arxiv.org/abs/2503.06923, in diffusers' form that foretells the denoiser's last layer and
leaves out its blocks. Which steps are computed follows from their number alone, so no image depends on its neighbours:
the first three, the fifth, and every so many after it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import diffusers
import torch
from diffusers.hooks import HookRegistry

CALL = "all"  # what a call is named in families whose pipelines do not tell calls with a negative prompt from others


class Foretelling:
    """A pipeline whose denoiser computes only every so many steps."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, interval: int) -> None:
        """Take a pipeline of a family that can do it."""
        self._denoiser = pipe.transformer
        config = diffusers.TaylorSeerCacheConfig(
            cache_interval=interval, use_lite_mode=True, taylor_factors_dtype=torch.float32
        )
        self._denoiser.enable_cache(config)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """One call of the pipeline, which knows nothing of the calls before, even of those that failed midway."""
        HookRegistry.check_if_exists_or_initialize(self._denoiser).reset_stateful_hooks()
        with self._denoiser.cache_context(CALL):
            yield
