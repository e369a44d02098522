"""How one network runs alone: how much of it is compiled, and with what."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from imagekiln.steps.generate.diffusion.compile import blocks_of

Untyped: TypeAlias = Any  # diffusers has no types to speak of
CompiledExtent = Literal["eager", "whole", "regional"]
MAX_SHAPES = 128


@dataclass(frozen=True, slots=True)
class Way:
    """How a network is run, by words in its name: fp8, eager, whole, regional, det, bench, flash.

    The denoiser is quantized before an `fp8` way. `det` asks Inductor for deterministic code,
    `bench` has cuDNN try its kernels, and `flash` keeps cuDNN from attention.
    """

    name: str

    @property
    def extent(self) -> CompiledExtent:
        """How much is compiled."""
        words = self.name.split("-")
        return "whole" if "whole" in words else "regional" if "regional" in words else "eager"

    @property
    def is_fp8(self) -> bool:
        """Whether the network computes in fp8."""
        return "fp8" in self.name.split("-")

    @property
    def options(self) -> dict[str, bool]:
        """The options of Inductor."""
        return {"deterministic": True} if "det" in self.name.split("-") else {}

    @contextmanager
    def applied(self, network: Untyped, *, inductor: bool) -> Iterator[None]:
        """Compile the network this way at its next call, and undo everything after the block.

        Without `inductor`, Dynamo traces as it does otherwise, but no code is generated.
        """
        torch._dynamo.reset()  # so that earlier ways do not count as recompilations
        torch._dynamo.config.recompile_limit = MAX_SHAPES
        switches = self.name.split("-")
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = "bench" in switches
        _allow_cudnn_attention("flash" not in switches)
        modules = regions_of(network, self.extent)
        for module in modules:
            _compile(module, self.options, inductor=inductor)
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before
            _allow_cudnn_attention(True)
            for module in modules:
                module._compiled_call_impl = None  # `compile` has no way back


def regions_of(network: Untyped, extent: CompiledExtent) -> list[torch.nn.Module]:
    """The modules that are compiled, each by itself; those of one class share their code."""
    if extent == "eager":
        return []
    if extent == "whole":
        return [network]
    return blocks_of(network)


def _compile(module: torch.nn.Module, options: dict[str, bool], *, inductor: bool) -> None:
    if inductor:
        module.compile(dynamic=False, options=options)
    else:
        module.compile(dynamic=False, backend="eager")


def _allow_cudnn_attention(allowed: bool) -> None:
    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(allowed)
