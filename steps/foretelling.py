"""Steps that are foretold from those before instead of computed: TaylorSeer, on a schedule.

Liu et al. 2025, https://arxiv.org/abs/2503.06923, in diffusers' form that foretells what the denoiser's last layer
gives and leaves out its blocks. Which steps are computed follows from their number alone, so no image depends on its
neighbours: the first three, the fifth, and from there on one in `interval`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import diffusers
import torch
from diffusers.hooks import HookRegistry

CALL = "all"  # what a call is named in families whose pipelines do not tell calls with a negative prompt from others
HOOK = "taylorseer_cache"  # what diffusers calls it
Hook: TypeAlias = Any  # diffusers has no types


class Foretelling:
    """A pipeline whose denoiser computes only some of its steps."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, interval: int) -> None:
        """Take a pipeline of a family that can do it."""
        self._denoiser = pipe.transformer
        self._denoiser.enable_cache(
            diffusers.TaylorSeerCacheConfig(
                cache_interval=interval, use_lite_mode=True, taylor_factors_dtype=torch.float32
            )
        )
        self._hooks = list(_hooks(self._denoiser))
        for hook in self._hooks:
            _beside_what_is_compiled(hook)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """One call of the pipeline, which knows nothing of the calls before, even of those that failed midway."""
        HookRegistry.check_if_exists_or_initialize(self._denoiser).reset_stateful_hooks()
        with self._denoiser.cache_context(CALL):
            yield

    def computed(self) -> bool:
        """Whether the denoiser computed its latest step. To be asked within that call's own context."""
        state = self._hooks[-1].state_manager.get_state()
        return bool(state.last_update_step == state.current_step)


def _hooks(denoiser: diffusers.ModelMixin) -> Iterator[Hook]:
    for module in denoiser.modules():
        if hasattr(module, "_diffusers_hook") and (hook := module._diffusers_hook.get_hook(HOOK)):
            yield hook


def _beside_what_is_compiled(hook: Hook) -> None:
    """Keep the counting of steps out of a block's compiled code, which would be compiled anew for each step."""
    disable: Hook = torch.compiler.disable  # untyped
    hook.fn_ref.forward = disable(hook.fn_ref.forward, recursive=False)
