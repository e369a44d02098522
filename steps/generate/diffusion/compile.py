"""Networks that are compiled at the first batch of each shape, or run as they are."""

import logging
import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import diffusers
import torch

from imagekiln.steps.errors import KilnError, first_line
from imagekiln.steps.generate.diffusion.compile_cache import CompileCache
from imagekiln.steps.generate.diffusion.device import is_device_lost, is_out_of_memory
from imagekiln.steps.generate.diffusion.kernels import KernelChoices, kernel_choices
from imagekiln.steps.generate.diffusion.patches import (
    PYTORCH_CACHE_VARIABLE,
    AnyFunction,
    compile_callbacks,
    compiled_call,
    graph_limit,
    repeated_blocks,
    set_compiled_call,
    shared_code_folder,
    with_float_timesteps,
)
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.models.families import family_of
from imagekiln.steps.models.loras import lora_weights
from imagekiln.steps.models.pipeline_calls import CallSignature, known_call_of
from imagekiln.steps.runs.image import BatchShape, ImageRow, batch_shape
from imagekiln.steps.runs.start_times import StartClock
from imagekiln.steps.runtime.sanitize import sanitize_line
from imagekiln.steps.storage.local import make_own_folder

CompileMode = Literal["regional", "whole", "none"]
Network: TypeAlias = Any  # diffusers has no types, and modules do not say what they contain
MAX_COMPILED_SHAPES = 128  # of one process; later shapes run uncompiled
COMPILE_OPTIONS = {"options": {"deterministic": True}}
# More than so many shapes can have: SDXL's UNet has 15 graphs a shape if compiled by its blocks.
MAX_GRAPHS = 2**15
# The blocks that are compiled in place of a whole denoiser, where `kernels` chooses that. diffusers
# names none for most of these classes, and of a UNet only one of the two.
_UNET_BLOCKS = frozenset({"BasicTransformerBlock", "ResnetBlock2D"})
BLOCK_CLASSES: Mapping[str, frozenset[str]] = {
    "UNet2DConditionModel": _UNET_BLOCKS,
    "ControlNetModel": _UNET_BLOCKS,
    "SD3Transformer2DModel": frozenset({"JointTransformerBlock", "SD3SingleTransformerBlock"}),
    "SD3ControlNetModel": frozenset({"JointTransformerBlock", "SD3SingleTransformerBlock"}),
    "PixArtTransformer2DModel": frozenset({"BasicTransformerBlock"}),
    "SanaTransformer2DModel": frozenset({"SanaTransformerBlock"}),
    "AuraFlowTransformer2DModel": frozenset(
        {"AuraFlowJointTransformerBlock", "AuraFlowSingleTransformerBlock"}
    ),
    "Lumina2Transformer2DModel": frozenset({"Lumina2TransformerBlock"}),
    "CogView4Transformer2DModel": frozenset({"CogView4TransformerBlock"}),
}
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True)
class CompileClock:
    """How often the process compiled while the clock ran, and the seconds that this took."""

    count: int = 0
    seconds: float = 0.0
    _started: float = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count what is compiled while the block runs."""
        with compile_callbacks(self._start, self._stop):
            yield

    def _start(self) -> None:
        self.count += 1
        self._started = time.perf_counter()

    def _stop(self) -> None:
        self.seconds += time.perf_counter() - self._started


class CompiledPipeline:
    """A pipeline whose networks are compiled at the first batch of each shape.

    `clock` counts what compiling takes. `compiling_now`: such a first batch is being drawn. PyTorch
    then patches state that all threads share, so nothing else may run beside it.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        speed: SpeedSettings,
        cache: CompileCache | None = None,
        other_denoisers: Sequence[Network] = (),
        start_clock: StartClock | None = None,
    ) -> None:
        """Set up what the settings, the device and the family ask for; nothing is compiled yet.

        `cache` holds code that other pods compiled. `start_clock` times how long that takes to
        load, and how long the compiler takes to be imported.
        `other_denoisers` run at each step too.
        """
        self.clock = CompileClock()
        self.compiling_now = False
        self._call = known_call_of(type(pipe).__name__)
        mode: CompileMode = "none"
        if _should_compile(speed, pipe.device):
            mode = family_of(type(pipe).__name__).compile_mode
        self._start_clock = start_clock or StartClock()
        with self._start_clock.phase("imports"):  # PyTorch imports its compiler when it is used
            self._networks = CompiledNetworks(pipe, mode, other_denoisers, kernel_choices(), cache)
        self._cache = cache
        self._begun: set[str] = set()
        self._drawn: set[str] = set()

    @property
    def mode(self) -> CompileMode:
        """How the networks are compiled."""
        return self._networks.mode

    def draw(self, batch: Sequence[ImageRow], call: Callable[[], T]) -> T:
        """What `call` returns. Where it fails because of compiling, it is called again without.

        Raises what `call` raises otherwise.
        """
        if self.mode == "none":
            return call()
        shape = code_shape(self._call, batch_shape(batch[0]), len(batch))
        if shape not in self._begun and len(self._begun) >= MAX_COMPILED_SHAPES:
            with self._networks.disabled():
                return call()
        count_before = self.clock.count
        try:
            with (
                graph_limit(MAX_GRAPHS),
                self._shared_code(shape),
                self.clock.measure(),
                self._flag_first_batch(shape),
            ):
                return call()
        except KilnError:
            raise
        except Exception as error:
            compiled = self.clock.count > count_before
            if not compiled or is_out_of_memory(error) or is_device_lost(error):
                raise
            reason = sanitize_line(first_line(str(error)) or type(error).__name__)
        return self._draw_uncompiled(call, reason)

    def expect_recompilation(self) -> None:
        """Take the next batch of each shape for its first one: what it runs is compiled anew."""
        self._drawn.clear()

    def _draw_uncompiled(self, call: Callable[[], T], reason: str) -> T:
        """Draw without compiling. Where that fails too, compiling was not to blame."""
        self._networks.disable()
        try:
            result = call()
        except BaseException:
            self._networks.enable()
            raise
        self._networks.mode = "none"
        log.warning(
            "The model could not be compiled (%s), so it runs uncompiled, slower. "
            "Set speed.compile: off.",
            reason,
        )
        return result

    @contextmanager
    def _shared_code(self, shape: str) -> Iterator[None]:
        """Load and save code at the first batch of a shape.

        A second try would save only some of it.
        """
        is_first = shape not in self._begun
        self._begun.add(shape)
        if self._cache is None or not is_first:
            yield
            return
        with ExitStack() as stack:
            with self._start_clock.phase("code"):
                stack.enter_context(self._cache.shared(shape))
            yield

    @contextmanager
    def _flag_first_batch(self, shape: str) -> Iterator[None]:
        self.compiling_now = shape not in self._drawn
        try:
            yield
            self._drawn.add(shape)
        finally:
            self.compiling_now = False


def code_shape(call: CallSignature, shape: BatchShape, images: int) -> str:
    """What of a batch decides its code: its size and shape, its LoRAs, whether it is guided."""
    guided = call.is_guided(shape.guidance)
    loras = ",".join(lora_weights(shape.loras)) or None
    plain_shape = replace(
        shape, steps=1, guidance=float(guided), sampler="default", loras=loras, strength=None
    )
    return f"{images} {plain_shape}"


class CompiledNetworks:
    """The networks of a pipeline, set to be compiled at their first call in a `mode`."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        mode: CompileMode,
        other_denoisers: Sequence[Network],
        choices: KernelChoices,
        cache: CompileCache | None = None,
    ) -> None:
        """Set them up, and `other_denoisers`. The decoder's code has a place of its own in `cache`.

        Batches of several shapes may decode the same chunks.
        """
        self.mode: CompileMode = mode
        self._calls: dict[Network, AnyFunction] = {}
        denoiser = getattr(pipe, "unet", getattr(pipe, "transformer", None))
        if mode == "none" or denoiser is None:
            self.mode = "none"
            return
        if mode == "regional" and not repeated_blocks(denoiser):
            self.mode = "whole"
        if choices.regional_blocks and type(denoiser).__name__ in BLOCK_CLASSES:
            self.mode = "regional"

        modules = _modules_to_compile(denoiser, self.mode)
        for other in other_denoisers:
            is_regional = choices.regional_blocks and type(other).__name__ in BLOCK_CLASSES
            modules.extend(_modules_to_compile(other, "regional" if is_regional else "whole"))
        options = compile_options(choices)
        for module in modules:
            module.compile(dynamic=False, **options)
            self._calls[module] = with_float_timesteps(module)
        vae = getattr(pipe, "vae", None)
        if isinstance(vae, diffusers.AutoencoderKL):  # others decode in loops that compile badly
            vae.decoder.compile(dynamic=False, **options)
            call = compiled_call(vae.decoder)
            self._calls[vae.decoder] = call if cache is None else with_shared_code(call, cache)
        self.enable()

    def disable(self) -> None:
        """Run the networks uncompiled."""
        for module in self._calls:
            set_compiled_call(module, None)

    def enable(self) -> None:
        """Run the networks compiled again."""
        for module, call in self._calls.items():
            set_compiled_call(module, call)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Run the networks uncompiled in the block."""
        self.disable()
        try:
            yield
        finally:
            self.enable()


def with_shared_code(call: AnyFunction, cache: CompileCache) -> AnyFunction:
    """The compiled call of a decoder, whose code is shared by the shape of what it decodes."""
    begun: set[str] = set()

    @wraps(call)
    def call_with_shared_code(latents: torch.Tensor, *args: object, **kwargs: object) -> object:
        shape = f"decoder {tuple(latents.shape)}"
        if shape in begun:
            return call(latents, *args, **kwargs)
        begun.add(shape)
        with cache.shared(shape):
            return call(latents, *args, **kwargs)

    return call_with_shared_code


def compile_options(choices: KernelChoices) -> dict[str, Any]:
    """The arguments of `torch.nn.Module.compile` by which kernels are chosen."""
    return COMPILE_OPTIONS if choices.deterministic_compile else {}


def _modules_to_compile(denoiser: Network, mode: CompileMode) -> list[Network]:
    """A denoiser, or its repeated blocks; each is compiled by itself.

    Blocks of one class share their code. Convolutions are fastest on a GPU in channels-last format.
    """
    if mode == "whole":
        return [denoiser.to(memory_format=torch.channels_last)]
    name = type(denoiser).__name__
    classes = BLOCK_CLASSES.get(name) or repeated_blocks(denoiser)
    if name in BLOCK_CLASSES:
        denoiser.to(memory_format=torch.channels_last)
    return [module for module in denoiser.modules() if type(module).__name__ in classes]


def asks_to_compile(speed: SpeedSettings, device: torch.device) -> bool:
    """Whether the settings ask for compilation on this device."""
    return speed.compile == "on" or (speed.compile == "auto" and device.type == "cuda")


def _should_compile(speed: SpeedSettings, device: torch.device) -> bool:
    if not asks_to_compile(speed, device):
        return False
    if not has_compiler():
        log.warning(
            "There is no C compiler with Python's headers to compile the model with, so it runs "
            "uncompiled, slower. Install gcc, or set speed.compile: off."
        )
        return False
    folder = shared_code_folder()
    if folder is not None and not make_own_folder(folder):
        log.warning(
            "%s: is not a folder that you alone can write, and code in it could be that of others, "
            "so the model runs uncompiled, slower. Remove it, or name a folder of your own in %s.",
            folder,
            PYTORCH_CACHE_VARIABLE,
        )
        return False
    return True


def has_compiler() -> bool:
    """Whether Triton can build its launchers: that takes a C compiler and Python's headers."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return bool(compiler) and Path(sysconfig.get_path("include"), "Python.h").is_file()
