"""How many images fit in a batch, and how long an image takes."""

from dataclasses import dataclass

from imagekiln.steps.job.job import Job


def floor_power_of_two(limit: float) -> int:
    """The largest power of two up to `limit`; 1 where there is none."""
    if limit < 1:
        return 1
    exponent = int(limit).bit_length() - 1
    return 1 << exponent


def limit_batch_pixels(images: int, pixels: int, limit: int | None) -> int:
    """A batch size, halved until images of so many pixels have at most `limit` in all."""
    if limit is None:
        return images
    while images > 1 and images * pixels > limit:
        images //= 2
    return images


# A bf16 H100 running diffusers uncompiled reaches about this much of its 790 TFLOP/s.
H100_TFLOPS = 300.0
VAE_TFLOP_PER_MEGAPIXEL = 10.0


@dataclass(frozen=True, slots=True)
class ForwardCost:
    """One forward pass of a denoiser at its own size, and whether guidance doubles it."""

    tflop: float
    megapixels: float
    doubled_by_guidance: bool = True


# Counted with torch's FlopCounterMode on meta tensors.
FORWARD_COSTS = {
    "stabilityai/stable-diffusion-xl-base-1.0": ForwardCost(6.76, 1.05),
    "stable-diffusion-v1-5/stable-diffusion-v1-5": ForwardCost(0.80, 0.26),
    "stabilityai/stable-diffusion-3.5-medium": ForwardCost(11.3, 1.05),
    "stabilityai/stable-diffusion-3.5-large": ForwardCost(31.1, 1.05),
    "black-forest-labs/FLUX.1-dev": ForwardCost(74.4, 1.05, doubled_by_guidance=False),
    "black-forest-labs/FLUX.1-schnell": ForwardCost(74.4, 1.05, doubled_by_guidance=False),
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": ForwardCost(6.6, 1.05),
    "Efficient-Large-Model/Sana_1600M_1024px_diffusers": ForwardCost(3.0, 1.05),
    "Qwen/Qwen-Image": ForwardCost(69.3, 1.05),
}


def seconds_per_pixel_step(
    job: Job, size: tuple[int, int], tuned: float | None = None
) -> float | None:
    """GPU seconds per pixel and step of an image of this size.

    The job's own figure goes first, then `tuned`, the tuning file's. None where there is neither
    and the table does not know the model.
    """
    width, height = size
    work = width * height * job.defaults.steps
    if job.shard.seconds_per_image is not None:
        return job.shard.seconds_per_image / work
    if tuned is not None:
        return tuned
    cost = FORWARD_COSTS.get(job.model.id)
    if cost is None:
        return None
    return _image_tflop(job, width * height, cost) / H100_TFLOPS / work


def _image_tflop(job: Job, pixels: int, cost: ForwardCost) -> float:
    megapixels = pixels / 1e6
    passes = job.defaults.steps
    if cost.doubled_by_guidance and job.defaults.guidance > 1:
        passes *= 2
    denoising = passes * cost.tflop * megapixels / cost.megapixels
    decoding = VAE_TFLOP_PER_MEGAPIXEL * megapixels
    return denoising + decoding
