"""Compile a pipeline block by block, at the first batch of each shape."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import diffusers
import torch

from imagekiln.steps.errors import KilnError, first_line
from imagekiln.steps.generate.diffusion.device import is_device_lost, is_out_of_memory
from imagekiln.steps.generate.diffusion.patches import (
    AnyFunction,
    compile_callbacks,
    compiled_call,
    execution_device,
    graph_limit,
    repeated_blocks,
    set_compiled_call,
)
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.models.families import PLAIN_FAMILY, CallSignature, family_of, known_call_of
from imagekiln.steps.models.loras import lora_weights
from imagekiln.steps.runs.image import BatchShape, ImageRow, batch_shape
from imagekiln.steps.runtime.sanitize import sanitize_line
from imagekiln.steps.storage.failures import translate_errors

PYTORCH_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
CompileMode = Literal["regional", "none"]
Network: TypeAlias = Any  # diffusers has no types, and modules do not say what they contain
# Deterministic: Inductor decides without timing, so that all pods run the same kernels.
COMPILE_OPTIONS: Mapping[str, Any] = {"options": {"deterministic": True}}
# More than all shapes of a run need: SDXL's UNet has 15 graphs per shape.
MAX_GRAPHS = 2**15
# Of a UNet, diffusers declares one of two.
UNET_BLOCKS = frozenset({"BasicTransformerBlock", "ResnetBlock2D"})
UNETS = {"UNet2DConditionModel", "ControlNetModel"}
# The networks that run at every step. Ideogram 4 has one more for its negative side.
DENOISERS = ("unet", "transformer", "unconditional_transformer")
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class CompileClock:
    """A clock that counts compilations and their seconds while it runs."""

    count: int = 0
    seconds: float = 0.0
    _started: float = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the compilations while the block runs."""
        with compile_callbacks(self._start, self._stop):
            yield

    def _start(self, _: object) -> None:
        self.count += 1
        self._started = time.perf_counter()

    def _stop(self, _: object) -> None:
        self.seconds += time.perf_counter() - self._started


class CompiledPipeline:
    """A pipeline whose repeated blocks and decoder are compiled at the first batch of each shape.

    Blocks of a class share code, so compiling takes a sixth of the time of whole networks. While
    `compiling_now`, no other thread may run models, since PyTorch patches global state.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        speed: SpeedSettings,
        other_denoisers: Sequence[Network] = (),
        *,
        has_references: bool = False,
    ) -> None:
        """Set up compilation by settings, device and family. Nothing is compiled yet.

        `other_denoisers` also run at each step. With `has_references`, the denoiser also reads
        reference images of any size. `mode` is `regional` if blocks are compiled.
        """
        self.clock = CompileClock()
        self.compiling_now = False
        self.mode: CompileMode = "none"
        name = type(pipe).__name__
        self._call = known_call_of(name)
        self._limits_guidance = speed.guidance_interval is not None
        self._has_references = has_references
        self._compiled: dict[Network, AnyFunction] = {}
        self._drawn: set[str] = set()
        if not family_of(name).compiles or not _should_compile(speed, execution_device(pipe)):
            return
        denoisers = (*denoisers_of(pipe), *other_denoisers)
        blocks = [block for denoiser in denoisers for block in blocks_of(denoiser)]
        if not blocks:
            return
        self.mode = "regional"
        vae = getattr(pipe, "vae", None)
        if isinstance(vae, diffusers.AutoencoderKL):  # others decode in loops that compile badly
            blocks.append(vae.decoder)
        # Texts of a pipeline that no table knows may have any length, each time another.
        has_any_length = has_references or family_of(name) is PLAIN_FAMILY
        dynamic = None if has_any_length else False
        for block in blocks:
            block.compile(dynamic=dynamic, **COMPILE_OPTIONS)
            self._compiled[block] = compiled_call(block)

    def draw(
        self, batch: Sequence[ImageRow], call: Callable[[], T], tokens: int | None = None
    ) -> T:
        """Run `call`, which denoises a batch. If its compilation fails, run it uncompiled.

        `tokens` is the length of the batch's prompts, if compiled code depends on it.
        """
        if self.mode == "none":
            return call()
        drawn_shape = batch_shape(batch[0])
        shape = code_shape(self._call, drawn_shape, len(batch), tokens)
        if self._limits_guidance:  # with few steps, all or none may have guidance
            shape += f" {drawn_shape}"
        count_before = self.clock.count
        try:
            with graph_limit(MAX_GRAPHS), self.clock.measure(), self._flag_first_batch(shape):
                return call()
        except KilnError:
            raise
        except Exception as error:
            compiled = self.clock.count > count_before
            if not compiled or is_out_of_memory(error) or is_device_lost(error):
                raise
            reason = sanitize_line(first_line(str(error)) or type(error).__name__)
        return self._draw_uncompiled(call, reason)

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Run the blocks uncompiled inside the `with` block."""
        self._set_compiled(on=False)
        try:
            yield
        finally:
            self._set_compiled(on=self.mode == "regional")

    def _set_compiled(self, *, on: bool) -> None:
        for block, compiled in self._compiled.items():
            set_compiled_call(block, compiled if on else None)

    def expect_recompilation(self) -> None:
        """Treat the next batch of each shape as its first, since its code is compiled again."""
        self._drawn.clear()

    def _draw_uncompiled(self, call: Callable[[], T], reason: str) -> T:
        """Run `call` without compiling. If that fails too, compiling was not to blame."""
        with self.uncompiled():
            result = call()
        self._set_compiled(on=False)
        self.mode = "none"
        log.warning(
            "The model could not be compiled (%s), so it runs uncompiled, slower. "
            "Set speed.compile: off.",
            reason,
        )
        return result

    @contextmanager
    def _flag_first_batch(self, shape: str) -> Iterator[None]:
        self.compiling_now = shape not in self._drawn
        try:
            yield
            if not self._has_references:  # whose next sizes may compile again
                self._drawn.add(shape)
        finally:
            self.compiling_now = False


def code_shape(
    call: CallSignature, shape: BatchShape, images: int, tokens: int | None = None
) -> str:
    """Format everything in a batch that decides its compiled code."""
    guided = call.is_guided(shape.guidance)
    loras = ",".join(lora_weights(shape.loras)) or None
    plain_shape = replace(
        shape,
        steps=1,
        guidance=float(guided),
        sampler="default",
        loras=loras,
        strength=None,
        guidance_rescale=None,
    )
    return f"{images} {tokens} {plain_shape}"


def denoisers_of(pipe: diffusers.DiffusionPipeline) -> list[Network]:
    """List the networks of a pipeline that run at every step."""
    networks = [getattr(pipe, name, None) for name in DENOISERS]
    return [network for network in networks if network is not None]


def blocks_of(denoiser: Network) -> list[Network]:
    """List the repeated blocks of a denoiser; empty if it has none."""
    name = type(denoiser).__name__
    classes = UNET_BLOCKS if name in UNETS else repeated_blocks(denoiser)
    modules = denoiser.modules()
    return [module for module in modules if type(module).__name__ in classes]


def _should_compile(speed: SpeedSettings, device: torch.device) -> bool:
    return speed.compile == "on" or (speed.compile == "auto" and device.type == "cuda")


def create_code_folder() -> None:
    """Create the folder for compiled code that the environment names, if any.

    It may be the only folder that a pod can write to.
    """
    folder = os.environ.get(PYTORCH_CACHE_VARIABLE)
    if folder:
        with translate_errors(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
