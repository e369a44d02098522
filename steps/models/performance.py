"""Batch sizes: powers of two, halved where memory holds no more."""

from dataclasses import dataclass

from imagekiln.steps.job.job import Job


def floor_power_of_two(most: float) -> int:
    """The largest power of two up to `most`; 1 where there is none."""
    return 1 << max(0, int(max(0, most)).bit_length() - 1)


def limit_batch_pixels(images: int, pixels: int, most: int | None) -> int:
    """A batch of images of so many pixels each, halved until it has no more than `most` at once, or one image."""
    while most is not None and images > 1 and images * pixels > most:
        images //= 2
    return images


# A bf16 H100 running diffusers uncompiled reaches about this much of its 790 TFLOP/s.
H100_TFLOPS = 300.0
VAE_TFLOP_PER_MEGAPIXEL = 10.0


@dataclass(frozen=True, slots=True)
class ForwardCost:
    """One forward of a denoiser at its own size: TFLOP, megapixels, and whether guidance doubles it."""

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
    """GPU seconds for each pixel and step of an image, so that other shapes follow from the default one.

    `tuned` is the tuning file's figure. None for a model that the table does not know, where neither the job nor the
    file gives one.
    """
    work = size[0] * size[1] * job.defaults.steps
    if job.shard.seconds_per_image is not None:
        return job.shard.seconds_per_image / work
    if tuned is not None:
        return tuned
    forward = FORWARD_COSTS.get(job.model.id)
    if forward is None:
        return None
    megapixels = size[0] * size[1] / 1e6
    passes = job.defaults.steps * (
        2 if forward.doubled_by_guidance and job.defaults.guidance > 1 else 1
    )
    denoising = passes * forward.tflop * megapixels / forward.megapixels
    return (denoising + VAE_TFLOP_PER_MEGAPIXEL * megapixels) / H100_TFLOPS / work
