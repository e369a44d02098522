"""How a pipeline's VAE decodes: a batch whole, or less at a time where memory asks for it.

No estimate says what fits: drivers, other processes and fragments take their part. So memory itself is asked.
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
    """The VAE of a pipeline, and the `way` in which it decodes: the latest one, more and more frugal."""

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, wanted: Literal["auto"] | DecodeMode
    ) -> None:
        """Have it decode in the way that is wanted. Raises BadInput where it knows no such way."""
        self.mode: DecodeMode = "whole"
        self._saves = wanted == "auto"
        self._vae: Vae = getattr(pipe, "vae", None)
        if wanted == "auto" and self._vae is not None:
            self._vae.decode = self._retry_smaller(self._vae.decode)
        elif wanted in ("slices", "tiles") and not self._switch_to(wanted):
            raise BadInput(
                f"speed.vae is {wanted!r}, which this model's VAE does not know. Write auto."
            )

    def reset(self) -> None:
        """Forget that memory ever ran out: decode whole again, unless another way was asked for."""
        if not self._saves or self.mode == "whole":
            return
        self._vae.disable_slicing()
        if self.mode == "tiles":
            self._vae.disable_tiling()
        self.mode = "whole"

    def _retry_smaller(self, decode: Callable[P, T]) -> Callable[P, T]:
        """The same, again and again with less at a time while memory runs out."""

        @wraps(decode)
        def saving(*args: P.args, **kwargs: P.kwargs) -> T:
            while True:
                try:
                    return decode(*args, **kwargs)
                except Exception as error:
                    if not is_out_of_memory(error) or not any(
                        map(self._switch_to, SMALLER_MODES[self.mode])
                    ):
                        raise
                log.warning(
                    "A batch does not fit in memory to be decoded: from here on in %s.", self.mode
                )
                free_memory()

        return saving

    def _switch_to(self, way: DecodeMode) -> bool:
        """Go over to a way, if the VAE knows it. Tiles are of one slice at a time."""
        try:
            self._vae.enable_slicing()
            if way == "tiles":
                self._vae.enable_tiling()
        except (AttributeError, NotImplementedError):
            return False
        self.mode = way
        return True
