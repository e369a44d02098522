"""Choices that only a measurement on a GPU can settle, with their defaults.

Each is an environment variable, so that a benchmark can try the others. They are no settings of a
job: once a choice is measured, the better one stays and its variable goes. Whatever changes
compiled code or the numerics belongs here, because all choices are part of the key of that code.
"""

import os
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch

from imagekiln.steps.errors import BadInput

REGIONAL_BLOCKS_VARIABLE = "IMAGEKILN_REGIONAL_BLOCKS"
DETERMINISTIC_COMPILE_VARIABLE = "IMAGEKILN_DETERMINISTIC_COMPILE"
DETERMINISTIC_CUDNN_VARIABLE = "IMAGEKILN_DETERMINISTIC_CUDNN"
DECODE_PIXELS_VARIABLE = "IMAGEKILN_DECODE_PIXELS"
DECODE_IMAGES_VARIABLE = "IMAGEKILN_DECODE_IMAGES"
MIDDLE_ATTENTION_VARIABLE = "IMAGEKILN_MIDDLE_ATTENTION"
OVERLAP_BATCHES_VARIABLE = "IMAGEKILN_OVERLAP_BATCHES"
MiddleAttention = Literal["fused", "matmul"]


@dataclass(frozen=True, slots=True)
class KernelChoices:
    """What the environment chooses.

    `regional_blocks`: denoisers that are compiled whole by default are compiled by their blocks
    where `compile.BLOCK_CLASSES` names them. `deterministic_compile`: PyTorch's compiler decides
    without timing. `deterministic_cudnn`: cuDNN runs only algorithms that give equal bytes.

    `decode_pixels` and `decode_images`: the VAE decodes at most so many at once. An image of
    1024 x 1024 keeps a GPU busy by itself: with more at once, small batches would decode more
    padding; with fewer, small images would leave the device idle. `middle_attention`: the VAE's
    middle block computes attention by PyTorch's own choice of kernel (`fused`), which for one head
    of 512 channels is slow on new GPUs, or by two matrix products and a softmax (`matmul`).
    `overlap_batches`: a batch's small inputs are copied without a wait for the batch before it.
    """

    regional_blocks: bool = False
    deterministic_compile: bool = True
    deterministic_cudnn: bool = True
    decode_pixels: int = 1024**2
    decode_images: int = 8
    middle_attention: MiddleAttention = "fused"
    overlap_batches: bool = False


def kernel_choices() -> KernelChoices:
    """The choices of this process. Raises BadInput where a variable has no valid value."""
    defaults = KernelChoices()
    return KernelChoices(
        _read_flag(REGIONAL_BLOCKS_VARIABLE, default=defaults.regional_blocks),
        _read_flag(DETERMINISTIC_COMPILE_VARIABLE, default=defaults.deterministic_compile),
        _read_flag(DETERMINISTIC_CUDNN_VARIABLE, default=defaults.deterministic_cudnn),
        _read_number(DECODE_PIXELS_VARIABLE, default=defaults.decode_pixels),
        _read_number(DECODE_IMAGES_VARIABLE, default=defaults.decode_images),
        _read_middle_attention(default=defaults.middle_attention),
        _read_flag(OVERLAP_BATCHES_VARIABLE, default=defaults.overlap_batches),
    )


def restrict_cudnn() -> None:
    """Have cuDNN run only deterministic algorithms in this process, as the choices say.

    Compiled code calls convolutions through PyTorch, which reads this at each call.
    """
    torch.backends.cudnn.deterministic = kernel_choices().deterministic_cudnn


def _read_flag(variable: str, *, default: bool) -> bool:
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise BadInput(f"{variable} is {value!r} in the environment. Write 0 or 1, or unset it.")
    return value == "1" if value else default


def _read_number(variable: str, *, default: int) -> int:
    value = os.environ.get(variable) or str(default)
    if not value.isdecimal() or int(value) < 1:
        raise BadInput(
            f"{variable} is {value!r} in the environment. Write a positive integer, or unset it."
        )
    return int(value)


def _read_middle_attention(*, default: MiddleAttention) -> MiddleAttention:
    value = os.environ.get(MIDDLE_ATTENTION_VARIABLE) or default
    if value not in get_args(MiddleAttention):
        raise BadInput(
            f"{MIDDLE_ATTENTION_VARIABLE} is {value!r} in the environment. Write fused or matmul, "
            "or unset it."
        )
    return cast("MiddleAttention", value)
