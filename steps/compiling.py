"""Batches drawn by compiled networks, and by plain ones where compiling fails."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TypeVar

import diffusers
import torch

from imagekiln.steps.compile_clock import CompileClock
from imagekiln.steps.compiled_code import CompileCache
from imagekiln.steps.device import is_device_lost, is_out_of_memory
from imagekiln.steps.errors import KilnError, first_line
from imagekiln.steps.families import family_of
from imagekiln.steps.loras import lora_weights
from imagekiln.steps.networks import CompiledNetworks, CompileMode, Network, has_compiler
from imagekiln.steps.rows import ImageRow, batch_shape
from imagekiln.steps.speed import SpeedSettings
from imagekiln.steps.visible import sanitize_line

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
            pipe, self._family.compile_mode if _should_compile(speed, pipe.device) else "none", further
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
        log.warning("The model could not be compiled (%s), so it runs as it is, slower. Set speed.compile: off.", said)
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
        first = replace(wanted, steps=1, guidance=guided, sampler="default", loras=loras, strength=None)
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
