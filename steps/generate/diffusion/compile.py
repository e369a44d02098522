"""Batches drawn by compiled networks, and by plain ones where compiling fails."""

import logging
import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import diffusers
import torch
from torch._dynamo.callback import CallbackArgs, callback_handler

from imagekiln.steps.errors import KilnError, first_line
from imagekiln.steps.generate.diffusion.compile_cache import CompileCache
from imagekiln.steps.generate.diffusion.device import is_device_lost, is_out_of_memory
from imagekiln.steps.job.speed import SpeedSettings
from imagekiln.steps.models.families import family_of
from imagekiln.steps.models.loras import lora_weights
from imagekiln.steps.runs.image import ImageRow, batch_shape
from imagekiln.steps.runtime.sanitize import sanitize_line


@dataclass(slots=True)
class CompileClock:
    """How often something was compiled while the clock ran, and the seconds that it took. A steady call has none."""

    count: int = 0
    seconds: float = 0.0
    _since: float = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count what this process compiles while the block runs. What is compiled within that counts once."""
        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)
        try:
            yield
        finally:
            callback_handler.remove_start_callback(self._start)
            callback_handler.remove_end_callback(self._end)

    def _start(self, _: CallbackArgs) -> None:
        self.count, self._since = self.count + 1, time.perf_counter()

    def _end(self, _: CallbackArgs) -> None:
        self.seconds += time.perf_counter() - self._since


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

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, how: CompileMode, further: Sequence[Network] = ()
    ) -> None:
        """Set them so, and `further` denoisers, each whole; nothing is compiled yet."""
        self.mode = how
        denoiser = getattr(pipe, "unet", getattr(pipe, "transformer", None))
        if how == "none" or denoiser is None:
            self.mode, self._calls = "none", dict[Network, object]()
            return
        if how == "regional" and not getattr(denoiser, "_repeated_blocks", None):
            self.mode = "whole"
        parts = _modules_to_compile(pipe, denoiser, self.mode)
        self._calls = _compile_modules(
            [*parts, *(each.to(memory_format=torch.channels_last) for each in further)]
        )

    def disable(self) -> None:
        """Run as they were written."""
        for network in self._calls:
            network._compiled_call_impl = None

    def enable(self) -> None:
        """Run compiled once more."""
        for network, call in self._calls.items():
            network._compiled_call_impl = call


def _modules_to_compile(
    pipe: diffusers.DiffusionPipeline, denoiser: Network, how: CompileMode
) -> list[Network]:
    """What is compiled each by itself: the denoiser or its repeated blocks, and the network that decodes."""
    parts = [denoiser]
    if how == "regional":  # blocks of one class share their code
        named = set(denoiser._repeated_blocks)
        parts = [each for each in denoiser.modules() if type(each).__name__ in named]
    else:
        denoiser.to(
            memory_format=torch.channels_last
        )  # what convolutions on a GPU are quickest with
    vae = getattr(pipe, "vae", None)
    # Of other kinds, some decode in loops over caches, in which little can be compiled.
    return [*parts, vae.decoder] if isinstance(vae, diffusers.AutoencoderKL) else parts


def _compile_modules(parts: list[Network]) -> dict[Network, object]:
    for part in parts:
        part.compile(dynamic=False, recompile_limit=MAX_COMPILED_SHAPES, **COMPILE_OPTIONS)
    return {part: part._compiled_call_impl for part in parts}


T = TypeVar("T")
log = logging.getLogger(__name__)


class CompiledPipeline:
    """A pipeline whose networks are compiled at the first batch of each shape. The `clock` counts what that takes.

    `first`: such a batch is being drawn. PyTorch patches what all threads share meanwhile, so nothing is to run beside.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        speed: SpeedSettings,
        code: CompileCache | None = None,
        further: Sequence[Network] = (),
    ) -> None:
        """Compile what the settings, the device and the family say; `code` is what other pods compiled.

        `further` are networks that run at its steps beside its own denoiser.
        """
        self.clock = CompileClock()
        self._family = family_of(type(pipe).__name__)
        self._networks = CompiledNetworks(
            pipe,
            self._family.compile_mode if _should_compile(speed, pipe.device) else "none",
            further,
        )
        self._code = code
        self._begun: set[str] = set()
        self._drawn: set[str] = set()
        self.compiling_now = False

    @property
    def mode(self) -> CompileMode:
        """How the networks are compiled."""
        return self._networks.mode

    def draw(self, batch: Sequence[ImageRow], call: Callable[[], T]) -> T:
        """What `call` makes of the batch. Where it fails because of compiling, it is called again without.

        Raises what `call` raises otherwise.
        """
        if self.mode == "none":
            return call()
        kind, before = self._code_key(batch), self.clock.count
        try:
            with self._shared_code(kind), self.clock.measure(), self._flag_first_batch(kind):
                return call()
        except KilnError:
            raise
        except Exception as error:
            if self.clock.count == before or is_out_of_memory(error) or is_device_lost(error):
                raise
            said = sanitize_line(first_line(str(error)) or type(error).__name__)
        return self._draw_uncompiled(call, said)

    def _draw_uncompiled(self, call: Callable[[], T], said: str) -> T:
        """The same without compiling. Where that fails too, compiling was not to blame."""
        self._networks.disable()
        try:
            drawn = call()
        except BaseException:
            self._networks.enable()
            raise
        self._networks.mode = "none"
        log.warning(
            "The model could not be compiled (%s), so it runs as it is, slower. Set speed.compile: off.",
            said,
        )
        return drawn

    def _shared_code(self, kind: str) -> AbstractContextManager[None]:
        """Take and leave code at the first batch of a kind. After one that failed, only some of it would be left."""
        if self._code is None or kind in self._begun:
            return nullcontext()
        self._begun.add(kind)
        return self._code.shared(kind)

    @contextmanager
    def _flag_first_batch(self, kind: str) -> Iterator[None]:
        """Say so while the first batch of a kind is drawn."""
        self.compiling_now = kind not in self._drawn
        try:
            yield
            self._drawn.add(kind)
        finally:
            self.compiling_now = False

    def _code_key(self, batch: Sequence[ImageRow]) -> str:
        """What of a batch decides the code that it needs: its size, shape and LoRAs, and if guidance doubles it."""
        wanted = batch_shape(batch[0])
        guided, loras = (
            float(wanted.guidance > self._family.guidance_threshold),
            ",".join(lora_weights(wanted.loras)) or None,
        )
        first = replace(
            wanted, steps=1, guidance=guided, sampler="default", loras=loras, strength=None
        )
        return f"{len(batch)} {first}"


def _should_compile(speed: SpeedSettings, device: torch.device) -> bool:
    if speed.compile == "off" or (speed.compile == "auto" and device.type != "cuda"):
        return False
    if not has_compiler():
        log.warning(
            "There is no C compiler with Python's headers to compile the model by, so it runs as it is, slower. "
            "Install gcc, or set speed.compile: off."
        )
        return False
    return True
