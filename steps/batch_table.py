"""Batch sizes of common models on common GPUs: computed from tokens and memory, not measured."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from imagekiln.steps.saturation import HEADROOM, LARGEST

SATURATED_TOKENS = 8192  # of images in one forward, both halves of guidance counted: more gains little
DECODED_BYTES = 2400  # a pixel: what the largest layers of a VAE hold at once, in 16 bits
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Size:
    """A model: GB of weights in 16 bits, texts' encoders included, and the side of a token's square in pixels.

    For a UNet, it is a token of the middle of its work, by level: SDXL does 69 % of that at 32 pixels, Stable Diffusion
    1.5 does 38, 29 and 27 % at 8, 16 and 32.
    """

    gigabytes: float
    token_side: int


MODELS: Mapping[str, Size] = {
    "stabilityai/stable-diffusion-xl-base-1.0": Size(7.0, 32),
    "stable-diffusion-v1-5/stable-diffusion-v1-5": Size(2.7, 16),
    "stabilityai/stable-diffusion-3.5-medium": Size(16.3, 16),
    "stabilityai/stable-diffusion-3.5-large": Size(27.6, 16),
    "black-forest-labs/FLUX.1-dev": Size(33.7, 16),
    "black-forest-labs/FLUX.1-schnell": Size(33.7, 16),
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": Size(10.9, 16),
    "Efficient-Large-Model/Sana_1600M_1024px_diffusers": Size(9.2, 32),
    "Qwen/Qwen-Image": Size(57.7, 16),
}
# GiB, by the name that PyTorch and nvidia-smi give.
GPUS: Mapping[str, int] = {
    "NVIDIA B200": 178,
    "NVIDIA H200": 140,
    "NVIDIA H100 80GB HBM3": 79,
    "NVIDIA H100 PCIe": 79,
    "NVIDIA H100 NVL": 93,
    "NVIDIA A100-SXM4-80GB": 79,
    "NVIDIA A100 80GB PCIe": 79,
    "NVIDIA A100-SXM4-40GB": 39,
    "NVIDIA A100-PCIE-40GB": 39,
    "NVIDIA L40S": 44,
    "NVIDIA L40": 44,
    "NVIDIA RTX 6000 Ada Generation": 47,
    "NVIDIA RTX A6000": 47,
    "NVIDIA A10": 22,
    "NVIDIA A10G": 22,
    "NVIDIA L4": 22,
    "NVIDIA GeForce RTX 5090": 31,
    "NVIDIA GeForce RTX 4090": 23,
    "NVIDIA GeForce RTX 3090": 23,
    "Tesla V100-SXM2-32GB": 31,
    "Tesla V100-SXM2-16GB": 15,
    "Tesla T4": 14,
}
SLICE = re.compile(r" MIG \d+[cg]\.(?:\d+g\.)?(\d+)gb")  # such as "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


def images(model: str, dtype: str, gpu: str, pixels: int, *, guided: bool) -> int | None:
    """The batch for images of so many pixels; None where model or GPU is not known.

    A power of two: what saturates the device, or what its memory holds if that is less.
    """
    size, memory = MODELS.get(model), _memory(gpu)
    if size is None or memory is None:
        return None
    width = 2 if dtype == "float32" else 1
    saturating = SATURATED_TOKENS * size.token_side**2 / (pixels * (2 if guided else 1))
    fitting = (HEADROOM * memory - size.gigabytes * 1e9 * width) / (DECODED_BYTES * width * pixels)
    return power_of_two(min(saturating, fitting, LARGEST))


def power_of_two(most: float) -> int:
    """The largest power of two up to `most`; 1 where there is none."""
    return 1 << max(0, int(max(0, most)).bit_length() - 1)


def halved(images: int, pixels: int, most: int | None) -> int:
    """A batch of images of so many pixels each, halved until it has no more than `most` at once, or one image."""
    while most is not None and images > 1 and images * pixels > most:
        images //= 2
    return images


def _memory(gpu: str) -> int | None:
    """Bytes of the GPU, or of a slice of one."""
    if part := SLICE.search(gpu):
        return int(part[1]) * 10**9
    return GPUS[gpu] * GIB if gpu in GPUS else None
