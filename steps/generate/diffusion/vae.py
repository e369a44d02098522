"""Decode with a pipeline's VAE in chunks of images, or in tiles after memory has run out.

The chunk size depends on the image size and the planned batch, so that an image decodes equally in
smaller batches, and one compiled decoder serves all. What fits in memory is found by trying.
"""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import diffusers
import torch
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.device import free_memory, is_out_of_memory
from imagekiln.steps.generate.diffusion.patches import execution_device
from imagekiln.steps.models.families import family_of

DecodeMode = Literal["whole", "tiles"]
# VAEs whose decoders are compiled, or whose tensors are so large that convolutions index slowly.
CHUNKED_VAES = (diffusers.AutoencoderKL, diffusers.AutoencoderKLFlux2)
# Of all images in a chunk. 1024 x 1024 pixels keep a GPU busy: with more, small batches would
# decode more padding; with fewer, small images would leave the device idle.
MAX_DECODE_PIXELS = 1024**2
MAX_DECODE_IMAGES = 8
# Latents of 1024 x 1024 pixels: their attention scores take 0.5 GB in bfloat16.
MAX_MATMUL_TOKENS = 128**2
Vae: TypeAlias = Any  # diffusers has no types; None in pipelines that decode otherwise
PlannedSize = Callable[[int, int], int]  # the batch size for a width and height
Decoded: TypeAlias = Any  # an object with `sample`, or a tuple
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class VaeDecoder:
    """The VAE of a pipeline, with the `mode` in which it currently decodes."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        mode: Literal["auto"] | DecodeMode,
        planned_size: PlannedSize | None = None,
        on_switch: Callable[[], None] = lambda: None,
    ) -> None:
        """Set the mode; `auto` starts with whole images. Raises BadInput if the VAE lacks it.

        Without `planned_size`, the size of each batch counts as planned. `on_switch` is called when
        memory has run out.
        """
        self.mode: DecodeMode = "whole"
        self._planned_size = planned_size
        self._on_switch = on_switch
        self._is_auto = mode == "auto"
        self._vae: Vae = getattr(pipe, "vae", None)
        if mode == "tiles" and not self._switch_to_tiles():
            raise BadInput(
                "speed.vae is 'tiles', which this model's VAE does not know. Write auto."
            )
        if isinstance(self._vae, CHUNKED_VAES):
            if execution_device(pipe).type == "cuda":
                self._vae.set_attn_processor(MiddleAttention())
            if not family_of(type(pipe).__name__).one_at_a_time:
                self._vae.decode = self._decode_in_chunks(self._vae.decode)
        if mode == "auto" and self._vae is not None:
            self._vae.decode = self._retry_smaller(self._vae.decode)

    def reset(self) -> None:
        """Decode whole images again, unless the job set a mode."""
        if not self._is_auto or self.mode == "whole":
            return
        self._vae.disable_slicing()
        self._vae.disable_tiling()
        self.mode = "whole"

    def _decode_in_chunks(self, decode: Callable[..., Decoded]) -> Callable[..., Decoded]:
        """Wrap `decode` to run on chunks whose size follows from the plan."""

        @wraps(decode)
        def decode_chunks(
            latents: torch.Tensor, return_dict: bool = True, **kwargs: object
        ) -> Decoded:
            if self.mode != "whole":  # the VAE itself decodes image by image
                return decode(latents, return_dict=return_dict, **kwargs)
            size = self._chunk_size(latents)
            padded = pad_images(latents, size)
            chunks = padded.chunk(len(padded) // size)
            decoded = [decode(chunk, return_dict=return_dict, **kwargs) for chunk in chunks]
            return _join_chunks(decoded, len(latents))

        return decode_chunks

    def _chunk_size(self, latents: torch.Tensor) -> int:
        levels = len(self._vae.config.block_out_channels)
        scale = 2 ** (levels - 1)
        height, width = (scale * side for side in latents.shape[-2:])
        batch_size = len(latents)
        if self._planned_size is not None:
            batch_size = self._planned_size(width, height)
        return decode_chunk_size(height, width, batch_size)

    def _retry_smaller(self, decode: Callable[P, T]) -> Callable[P, T]:
        """Wrap `decode` to retry in tiles when memory runs out."""

        @wraps(decode)
        def decode_in_pieces(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return decode(*args, **kwargs)
            except Exception as error:
                is_full = self.mode == "whole" and is_out_of_memory(error)
                if not is_full or not self._switch_to_tiles():
                    raise
            self._on_switch()
            log.warning("A batch does not fit in memory to be decoded: from here on in tiles.")
            free_memory()
            return decode(*args, **kwargs)

        return decode_in_pieces

    def _switch_to_tiles(self) -> bool:
        """Switch to decoding image by image, large images in tiles; return False if unsupported."""
        try:
            self._vae.enable_slicing()
            self._vae.enable_tiling()
        except (AttributeError, NotImplementedError):
            return False
        self.mode = "tiles"
        return True


class MiddleAttention:
    """The attention of a VAE's middle block, by two matrix products and a softmax.

    PyTorch's fast fused kernels take heads of at most 256 channels, and this one has 512. Large
    images use the fused attention, since their scores would not fit in memory.
    """

    def __init__(self) -> None:
        """Create both implementations."""
        self._matmul = AttnProcessor()
        self._fused = AttnProcessor2_0()

    def __call__(
        self, attention: Attention, hidden_states: torch.Tensor, *args: object, **kwargs: object
    ) -> torch.Tensor:
        """Attend within each image of `hidden_states`, (images, channels, height, width)."""
        height, width = hidden_states.shape[-2:]
        tokens = height * width
        process = self._matmul if tokens <= MAX_MATMUL_TOKENS else self._fused
        attended: torch.Tensor = process(attention, hidden_states, *args, **kwargs)
        return attended


def decode_chunk_size(height: int, width: int, batch_size: int) -> int:
    """Return the number of images of a size to decode at once, a power of two.

    It is at most the next power of two from the planned `batch_size`: more would be padding.
    """
    size = min(MAX_DECODE_IMAGES, 1 << (batch_size - 1).bit_length())
    while size > 1 and size * height * width > MAX_DECODE_PIXELS:
        size //= 2
    return size


def pad_images(latents: torch.Tensor, multiple: int) -> torch.Tensor:
    """Pad latents to a multiple of `multiple` images by repeating the last one."""
    missing = -len(latents) % multiple
    if missing == 0:
        return latents
    return torch.cat([latents, latents[-1:].expand(missing, *latents.shape[1:])])


def _join_chunks(decoded: list[Decoded], count: int) -> Decoded:
    """Join the first `count` images of all chunks, in the form that the VAE returned."""
    first = decoded[0]
    if isinstance(first, tuple):
        return (torch.cat([images for (images,) in decoded])[:count],)
    first.sample = torch.cat([chunk.sample for chunk in decoded])[:count]
    return first
