"""How a pipeline's VAE decodes: a batch whole, or in smaller pieces where memory runs out.

No estimate says what fits, because drivers, other processes and fragmentation take memory too. So
the VAE tries.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import diffusers

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.device import free_memory, is_out_of_memory

DecodeMode = Literal["whole", "slices", "tiles"]
SMALLER_MODES: dict[DecodeMode, tuple[DecodeMode, ...]] = {
    "whole": ("slices", "tiles"),
    "slices": ("tiles",),
    "tiles": (),
}
Vae: TypeAlias = Any  # diffusers has no types; None in pipelines that decode otherwise
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class VaeDecoder:
    """The VAE of a pipeline, and the `mode` in which it decodes by now."""

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, mode: Literal["auto"] | DecodeMode
    ) -> None:
        """Set the mode;

        `auto` starts with whole batches. Raises BadInput where the VAE lacks it.
        """
        self.mode: DecodeMode = "whole"
        self._is_auto = mode == "auto"
        self._vae: Vae = getattr(pipe, "vae", None)
        if mode == "auto" and self._vae is not None:
            self._vae.decode = self._retry_smaller(self._vae.decode)
        elif mode in ("slices", "tiles") and not self._switch_to(mode):
            raise BadInput(
                f"speed.vae is {mode!r}, which this model's VAE does not know. Write auto."
            )

    def reset(self) -> None:
        """Decode whole batches again, unless the job set a mode."""
        if not self._is_auto or self.mode == "whole":
            return
        self._vae.disable_slicing()
        if self.mode == "tiles":
            self._vae.disable_tiling()
        self.mode = "whole"

    def _retry_smaller(self, decode: Callable[P, T]) -> Callable[P, T]:
        """The same function, retried in smaller pieces while memory runs out."""

        @wraps(decode)
        def decode_in_pieces(*args: P.args, **kwargs: P.kwargs) -> T:
            while True:
                try:
                    return decode(*args, **kwargs)
                except Exception as error:
                    if not is_out_of_memory(error) or not self._shrink():
                        raise
                log.warning(
                    "A batch does not fit in memory to be decoded: from here on in %s.", self.mode
                )
                free_memory()

        return decode_in_pieces

    def _shrink(self) -> bool:
        return any(self._switch_to(mode) for mode in SMALLER_MODES[self.mode])

    def _switch_to(self, mode: DecodeMode) -> bool:
        """Switch to a mode, if the VAE has it. Tiles are of one slice at a time."""
        try:
            self._vae.enable_slicing()
            if mode == "tiles":
                self._vae.enable_tiling()
        except (AttributeError, NotImplementedError):
            return False
        self.mode = mode
        return True
