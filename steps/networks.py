"""A pipeline's networks set to be compiled, by region or whole as the family takes it, and set back.

Each batch shape is compiled for itself: code for any shape would give an image other bytes by the shapes before it.
Kernels chosen by a stopwatch would, from one pod to the next; hence `deterministic`, and no autotuning mode.
"""

import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import diffusers
import torch

CompileMode = Literal["regional", "whole", "none"]
Network: TypeAlias = Any  # diffusers has no types, and modules say not what they hold
MAX_COMPILED_SHAPES = 128  # of one network: what comes after them runs without being compiled
COMPILE_OPTIONS = {"options": {"deterministic": True}}


def has_compiler() -> bool:
    """Whether there is what Triton builds its launchers with: a C compiler, and Python's headers."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return bool(compiler) and Path(sysconfig.get_path("include"), "Python.h").is_file()


class CompiledNetworks:
    """The networks of a pipeline that are compiled at their first call, `how` the family takes it."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, how: CompileMode, further: Sequence[Network] = ()) -> None:
        """Set them so, and `further` denoisers, each whole; nothing is compiled yet."""
        self.mode = how
        denoiser = getattr(pipe, "unet", getattr(pipe, "transformer", None))
        if how == "none" or denoiser is None:
            self.mode, self._calls = "none", dict[Network, object]()
            return
        if how == "regional" and not getattr(denoiser, "_repeated_blocks", None):
            self.mode = "whole"
        parts = _modules_to_compile(pipe, denoiser, self.mode)
        self._calls = _compile_modules([*parts, *(each.to(memory_format=torch.channels_last) for each in further)])

    def disable(self) -> None:
        """Run as they were written."""
        for network in self._calls:
            network._compiled_call_impl = None

    def enable(self) -> None:
        """Run compiled once more."""
        for network, call in self._calls.items():
            network._compiled_call_impl = call


def _modules_to_compile(pipe: diffusers.DiffusionPipeline, denoiser: Network, how: CompileMode) -> list[Network]:
    """What is compiled each by itself: the denoiser or its repeated blocks, and the network that decodes."""
    parts = [denoiser]
    if how == "regional":  # blocks of one class share their code
        named = set(denoiser._repeated_blocks)
        parts = [each for each in denoiser.modules() if type(each).__name__ in named]
    else:
        denoiser.to(memory_format=torch.channels_last)  # what convolutions on a GPU are quickest with
    vae = getattr(pipe, "vae", None)
    # Of other kinds, some decode in loops over caches, in which little can be compiled.
    return [*parts, vae.decoder] if isinstance(vae, diffusers.AutoencoderKL) else parts


def _compile_modules(parts: list[Network]) -> dict[Network, object]:
    for part in parts:
        part.compile(dynamic=False, recompile_limit=MAX_COMPILED_SHAPES, **COMPILE_OPTIONS)
    return {part: part._compiled_call_impl for part in parts}
