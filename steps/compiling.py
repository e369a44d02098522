"""Batches drawn by compiled networks, and by plain ones where compiling fails."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TypeVar

import diffusers
import torch

from imagekiln.steps.compile_clock import Clock
from imagekiln.steps.compiled_code import CompiledCode
from imagekiln.steps.device import is_lost, is_out_of_memory
from imagekiln.steps.errors import KilnError, first_line
from imagekiln.steps.families import family
from imagekiln.steps.loras import weights
from imagekiln.steps.networks import How, Network, Networks, has_compiler
from imagekiln.steps.rows import ImageRow, shape
from imagekiln.steps.speed import Speed
from imagekiln.steps.visible import in_line

T = TypeVar("T")
log = logging.getLogger(__name__)


class Compiling:
    """A pipeline whose networks are compiled at the first batch of each shape. The `clock` counts what that takes.

    `first`: such a batch is being drawn. PyTorch patches what all threads share meanwhile, so nothing is to run beside.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        speed: Speed,
        code: CompiledCode | None = None,
        further: Sequence[Network] = (),
    ) -> None:
        """Compile what the settings, the device and the family say; `code` is what other pods compiled.

        `further` are networks that run at its steps beside its own denoiser.
        """
        self.clock = Clock()
        self._family = family(type(pipe).__name__)
        self._networks = Networks(pipe, self._family.compiled if _wanted(speed, pipe.device) else "none", further)
        self._code = code
        self._begun: set[str] = set()
        self._drawn: set[str] = set()
        self.first = False

    @property
    def how(self) -> How:
        """How the networks are compiled."""
        return self._networks.how

    def draw(self, batch: Sequence[ImageRow], call: Callable[[], T]) -> T:
        """What `call` makes of the batch. Where it fails because of compiling, it is called again without.

        Raises what `call` raises otherwise.
        """
        if self.how == "none":
            return call()
        kind, before = self._kind(batch), self.clock.count
        try:
            with self._shared(kind), self.clock.running(), self._alone(kind):
                return call()
        except KilnError:
            raise
        except Exception as error:
            if self.clock.count == before or is_out_of_memory(error) or is_lost(error):
                raise
            said = in_line(first_line(str(error)) or type(error).__name__)
        return self._plain(call, said)

    def _plain(self, call: Callable[[], T], said: str) -> T:
        """The same without compiling. Where that fails too, compiling was not to blame."""
        self._networks.plain()
        try:
            drawn = call()
        except BaseException:
            self._networks.again()
            raise
        self._networks.how = "none"
        log.warning("The model could not be compiled (%s), so it runs as it is, slower. Set speed.compile: off.", said)
        return drawn

    def _shared(self, kind: str) -> AbstractContextManager[None]:
        """Take and leave code at the first batch of a kind. After one that failed, only some of it would be left."""
        if self._code is None or kind in self._begun:
            return nullcontext()
        self._begun.add(kind)
        return self._code.used(kind)

    @contextmanager
    def _alone(self, kind: str) -> Iterator[None]:
        """Say so while the first batch of a kind is drawn."""
        self.first = kind not in self._drawn
        try:
            yield
            self._drawn.add(kind)
        finally:
            self.first = False

    def _kind(self, batch: Sequence[ImageRow]) -> str:
        """What of a batch decides the code that it needs: its size, shape and LoRAs, and if guidance doubles it."""
        wanted = shape(batch[0])
        guided, loras = float(wanted.guidance > self._family.unguided), ",".join(weights(wanted.loras)) or None
        first = replace(wanted, steps=1, guidance=guided, sampler="default", loras=loras, strength=None)
        return f"{len(batch)} {first}"


def _wanted(speed: Speed, device: torch.device) -> bool:
    if speed.compile == "off" or (speed.compile == "auto" and device.type != "cuda"):
        return False
    if not has_compiler():
        log.warning(
            "There is no C compiler with Python's headers to compile the model by, so it runs as it is, slower. "
            "Install gcc, or set speed.compile: off."
        )
        return False
    return True
