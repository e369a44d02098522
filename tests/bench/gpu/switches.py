"""Every switch that a measurement decides, in one place.

`Way` runs one network alone: how much of it is compiled, and with what. Each of `JOB_SWITCHES` is
measured in a whole job, beside a job without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeAlias

import torch

Untyped: TypeAlias = Any  # diffusers has no types to speak of
CompiledExtent = Literal["eager", "whole", "regional"]
MAX_SHAPES = 128
# Blocks of classes that diffusers names no repeated blocks for.
REGIONS = {"UNet2DConditionModel": ("BasicTransformerBlock", "ResnetBlock2D")}

UNET_WAYS = ("whole-det", "regional-det", "whole", "regional-flash")
FLUX_WAYS = ("eager", "regional-det", "regional-det-flash", "regional")
FLUX_FP8_WAYS = ("regional-det", "regional")


@dataclass(frozen=True, slots=True)
class JobSwitch:
    """A choice that the program makes for every job, and what makes the other one.

    It is in a module of `steps.generate.diffusion`, by name: an environment variable that is read
    there, or constants that are defined there.
    """

    module: str
    environment: dict[str, str] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)

    def exists(self) -> bool:
        """Whether this version of the program has the choice."""
        try:
            module = self._import()
        except ModuleNotFoundError:
            return False
        return all(hasattr(module, name) for name in self.constants)

    def set_constants(self) -> None:
        """Make the other choice in this process, as far as constants make it."""
        module = self._import()
        for name, value in self.constants.items():
            setattr(module, name, value)

    def _import(self) -> ModuleType:
        return import_module(f"imagekiln.steps.generate.diffusion.{self.module}")


JOB_SWITCHES = {
    "regional blocks": JobSwitch("kernels", {"IMAGEKILN_REGIONAL_BLOCKS": "1"}),
    "timed compile": JobSwitch("kernels", {"IMAGEKILN_DETERMINISTIC_COMPILE": "0"}),
    "any cuDNN algorithm": JobSwitch("kernels", {"IMAGEKILN_DETERMINISTIC_CUDNN": "0"}),
    "VAE attention by matmul": JobSwitch("vae", constants={"MIDDLE_ATTENTION": "matmul"}),
    "VAE chunks of 4 at 1024²": JobSwitch("vae", constants={"MAX_CHUNK_PIXELS": 4 * 1024**2}),
}


@dataclass(frozen=True, slots=True)
class Way:
    """How a network is run, as its name says: eager, whole or regional, then -det, -bench, -flash.

    `det` asks Inductor for deterministic code, `bench` has cuDNN try its kernels, and `flash` keeps
    cuDNN from attention.
    """

    name: str

    @property
    def extent(self) -> CompiledExtent:
        """How much is compiled."""
        extents: dict[str, CompiledExtent] = {"whole": "whole", "regional": "regional"}
        return extents.get(self.name.partition("-")[0], "eager")

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
    names = REGIONS.get(type(network).__name__) or getattr(network, "_repeated_blocks", None) or ()
    return [module for module in network.modules() if type(module).__name__ in names]


def _compile(module: torch.nn.Module, options: dict[str, bool], *, inductor: bool) -> None:
    if inductor:
        module.compile(dynamic=False, options=options)
    else:
        module.compile(dynamic=False, backend="eager")


def _allow_cudnn_attention(allowed: bool) -> None:
    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(allowed)
