"""Batch sizes and the time per image."""

from dataclasses import dataclass

from imagekiln.steps.job.job import Job
from imagekiln.steps.models.facts import (
    ModelFacts,
    default_guidance,
    default_image_size,
    default_steps,
)


def floor_power_of_two(limit: float) -> int:
    """Return the largest power of two up to `limit`; 1 if there is none."""
    exponent = max(1, int(limit)).bit_length() - 1
    return 1 << exponent


def limit_batch_pixels(images: int, pixels: int, limit: int | None) -> int:
    """Halve a batch size until its images, of `pixels` each, have at most `limit` pixels in all."""
    while limit is not None and images > 1 and images * pixels > limit:
        images //= 2
    return images


# An H100 that runs diffusers uncompiled in bf16 reaches about this much of its 790 TFLOP/s.
H100_TFLOPS = 300.0
VAE_TFLOP_PER_MEGAPIXEL = 10.0
COMPUTED_SOURCE = (
    f"computed, not measured: the model's FLOPs on an H100 at {H100_TFLOPS:.0f} TFLOP/s"
)
JOB_SOURCE = "by the job's shard.seconds_per_image"

# Dense 16-bit TFLOP/s in NVIDIA's data sheets, as multiples of an H100's 989.
GPU_SPEEDS = {
    "B200": 2250 / 989,
    "A100": 312 / 989,
    "L40S": 362 / 989,
    "A10G": 70 / 989,
    "L4": 121 / 989,
}


@dataclass(frozen=True, slots=True)
class TimeFigure:
    """Seconds of one GPU per pixel and step of an image, and their source.

    `device` names the GPU that was measured.
    """

    seconds_per_work: float
    source: str
    is_measured: bool = True
    device: str | None = None


# TFLOP per megapixel of one forward pass of a denoiser at its default size, counted with torch's
# FlopCounterMode on meta tensors.
FORWARD_TFLOP_PER_MEGAPIXEL = {
    "stabilityai/stable-diffusion-xl-base-1.0": 6.76 / 1.05,
    "stable-diffusion-v1-5/stable-diffusion-v1-5": 0.80 / 0.26,
    "stabilityai/stable-diffusion-3.5-medium": 11.3 / 1.05,
    "stabilityai/stable-diffusion-3.5-large": 31.1 / 1.05,
    "black-forest-labs/FLUX.1-dev": 74.4 / 1.05,
    "black-forest-labs/FLUX.1-schnell": 74.4 / 1.05,
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": 6.6 / 1.05,
    "Efficient-Large-Model/Sana_1600M_1024px_diffusers": 3.0 / 1.05,
    "Qwen/Qwen-Image": 69.3 / 1.05,
}


def time_figure(job: Job, facts: ModelFacts, tuned: TimeFigure | None = None) -> TimeFigure | None:
    """Estimate the time per pixel and step, from an image of the default size and steps.

    The job's own figure has priority, then `tuned`, from the tuning file, then a table of models.
    None if none of them has the model.
    """
    width, height = default_image_size(job, facts)
    steps = default_steps(job, facts)
    work = width * height * steps
    if job.shard.seconds_per_image is not None:
        return TimeFigure(job.shard.seconds_per_image / work, JOB_SOURCE)
    if tuned is not None:
        return tuned
    tflop = FORWARD_TFLOP_PER_MEGAPIXEL.get(job.model.id)
    if tflop is None:
        return None
    passes = 2 * steps if facts.own.call.is_guided(default_guidance(job, facts)) else steps
    tflop_per_pixel = (passes * tflop + VAE_TFLOP_PER_MEGAPIXEL) / 1e6
    return TimeFigure(tflop_per_pixel / H100_TFLOPS / steps, COMPUTED_SOURCE, is_measured=False)
