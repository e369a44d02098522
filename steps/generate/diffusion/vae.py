"""How a pipeline's VAE decodes: some images at once, or in smaller pieces where memory runs out.

How many at once depends on their size in pixels and on the planned size of their batches, so that
an image decodes alike in a smaller batch than planned, and one compiled decoder serves all of them.
No estimate says what fits in memory,
because drivers, other processes and fragmentation take some too. So the VAE tries.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import diffusers
import torch
from diffusers.models.attention_processor import AttnProcessor

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.device import free_memory, is_out_of_memory
from imagekiln.steps.generate.diffusion.kernels import KernelChoices, kernel_choices
from imagekiln.steps.models.families import family_of

DecodeMode = Literal["whole", "slices", "tiles"]
SMALLER_MODES: dict[DecodeMode, tuple[DecodeMode, ...]] = {
    "whole": ("slices", "tiles"),
    "slices": ("tiles",),
    "tiles": (),
}
# Those whose decoders are compiled, or large enough for tensors that convolutions index slowly.
CHUNKED_VAES = (diffusers.AutoencoderKL, diffusers.AutoencoderKLFlux2)
# From 2**31 elements on, convolutions need indices of 64 bits, for which cuDNN has few kernels.
MAX_TENSOR_ELEMENTS = 2**31
Vae: TypeAlias = Any  # diffusers has no types; None in pipelines that decode otherwise
PlannedSize = Callable[[int, int], int]  # how many images of a width and height a batch has
Decoded: TypeAlias = Any  # an object with `sample`, or a tuple
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class VaeDecoder:
    """The VAE of a pipeline, and the `mode` in which it decodes by now."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        mode: Literal["auto"] | DecodeMode,
        planned_size: PlannedSize | None = None,
        on_switch: Callable[[], None] = lambda: None,
    ) -> None:
        """Set the mode; `auto` starts with whole images. Raises BadInput where the VAE lacks it.

        Without `planned_size`, each batch counts as planned. `on_switch` is called after memory ran
        out, before anything is decoded in a smaller mode.
        """
        self.mode: DecodeMode = "whole"
        self._planned_size = planned_size
        self._on_switch = on_switch
        self._is_auto = mode == "auto"
        self._choices = kernel_choices()
        self._vae: Vae = getattr(pipe, "vae", None)
        if mode in ("slices", "tiles") and not self._switch_to(mode):
            raise BadInput(
                f"speed.vae is {mode!r}, which this model's VAE does not know. Write auto."
            )
        if isinstance(self._vae, CHUNKED_VAES):
            if self._choices.middle_attention == "matmul":
                self._vae.set_attn_processor(AttnProcessor())
            if not family_of(type(pipe).__name__).one_at_a_time:
                self._vae.decode = self._decode_in_chunks(self._vae.decode)
        if mode == "auto" and self._vae is not None:
            self._vae.decode = self._retry_smaller(self._vae.decode)

    def reset(self) -> None:
        """Decode whole images again, unless the job set a mode."""
        if not self._is_auto or self.mode == "whole":
            return
        self._vae.disable_slicing()
        if self.mode == "tiles":
            self._vae.disable_tiling()
        self.mode = "whole"

    def _decode_in_chunks(self, decode: Callable[..., Decoded]) -> Callable[..., Decoded]:
        """The same function, called for chunks of a number of images that the plan decides."""

        @wraps(decode)
        def decode_chunks(
            latents: torch.Tensor, return_dict: bool = True, **kwargs: object
        ) -> Decoded:
            if self.mode != "whole":  # then the VAE itself decodes image by image
                return decode(latents, return_dict=return_dict, **kwargs)
            size = self._chunk_size(latents)
            padded = pad_images(latents, size)
            chunks = padded.chunk(len(padded) // size)
            decoded = [decode(chunk, return_dict=return_dict, **kwargs) for chunk in chunks]
            return _join_chunks(decoded, len(latents))

        return decode_chunks

    def _chunk_size(self, latents: torch.Tensor) -> int:
        config = self._vae.config
        scale = 2 ** (len(config.block_out_channels) - 1)
        height, width = (scale * side for side in latents.shape[-2:])
        batch_size = len(latents)
        if self._planned_size is not None:
            batch_size = self._planned_size(width, height)
        channels = config.get("decoder_block_out_channels") or config.block_out_channels
        # The last up block begins with the channels of the block before it.
        return decode_chunk_size(max(channels[:2]), height, width, batch_size, self._choices)

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
                self._on_switch()
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


def decode_chunk_size(
    channels: int, height: int, width: int, batch_size: int, choices: KernelChoices
) -> int:
    """How many images of a size in pixels are decoded at once: a power of two.

    It is at most the next one from the planned `batch_size` on: more would be padding. `channels`
    is the most that a layer of the decoder has at full size.
    """
    pixels = height * width
    size = min(choices.decode_images, 1 << (batch_size - 1).bit_length())
    while size > 1 and not _chunk_fits(size, channels, pixels, choices.decode_pixels):
        size //= 2
    return size


def _chunk_fits(size: int, channels: int, pixels: int, max_pixels: int) -> bool:
    return size * pixels <= max_pixels and size * pixels * channels < MAX_TENSOR_ELEMENTS


def pad_images(latents: torch.Tensor, multiple: int) -> torch.Tensor:
    """The latents, with the last one repeated up to a multiple of this many."""
    missing = -len(latents) % multiple
    if missing == 0:
        return latents
    return torch.cat([latents, latents[-1:].expand(missing, *latents.shape[1:])])


def _join_chunks(decoded: list[Decoded], count: int) -> Decoded:
    """The first `count` images of all chunks, in the form that the VAE returned."""
    first = decoded[0]
    if isinstance(first, tuple):
        return (torch.cat([images for (images,) in decoded])[:count],)
    first.sample = torch.cat([chunk.sample for chunk in decoded])[:count]
    return first
