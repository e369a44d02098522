"""Section `samplers`: what a sampler that has the device wait for the host costs a step."""

import copy
from contextlib import nullcontext

import diffusers
import torch

from imagekiln.steps.generate.diffusion.patches import pinned_step_noise, step_on_host
from imagekiln.steps.generate.diffusion.variants import make_scheduler
from tests.bench import random_models
from tests.bench.gpu.networks import Placement, Untyped, filled_network, is_unet
from tests.bench.gpu.session import Session
from tests.bench.gpu.switches import Way
from tests.bench.timing import call_seconds, median_seconds, release_memory
from tests.bench.work import Work

CLIP_TOKENS = 77
STEPS = 12
SECONDS_PER_SAMPLER = 8.0
# They read a timestep of the device at each step, or draw noise.
WAITING = ("pndm", "ddim", "lcm", "euler_a")
SAMPLERS = ("euler", "dpmpp_2m", *WAITING)


def measure_samplers(session: Session) -> None:
    """Milliseconds a step by sampler, as diffusers steps and as jobs do."""
    pipe = _make_pipeline(session.model, session.placement)
    own = pipe.scheduler
    torch.backends.cudnn.deterministic = True  # as in jobs
    with Way("regional-det").applied(pipe.unet, inductor=session.on_cuda):
        for name in SAMPLERS:
            scheduler = make_scheduler(own, name)
            _measure(session, pipe, name, scheduler)
            if name in WAITING:
                _measure(session, pipe, f"{name}, as in jobs", scheduler, as_in_jobs=True)
    release_memory()


def _make_pipeline(model: str, place: Placement) -> Untyped:
    """A pipeline without texts: its denoiser, its VAE, and the scheduler of its model."""
    unet = filled_network(model, "denoiser", place)
    if not is_unet(unet):
        raise ValueError(f"{model} has no UNet; use sd15")
    pipe = diffusers.StableDiffusionPipeline(
        vae=filled_network(model, "vae", place),
        text_encoder=None,
        tokenizer=None,
        unet=unet.to(memory_format=torch.channels_last),
        scheduler=random_models.euler_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _measure(
    session: Session, pipe: Untyped, name: str, scheduler: Untyped, *, as_in_jobs: bool = False
) -> None:
    if not session.has_time_for(f"samplers, {name}", SECONDS_PER_SAMPLER):
        return
    embeds = session.placement.random(
        session.work.batch, CLIP_TOKENS, pipe.unet.config.cross_attention_dim
    )

    def draw(steps: int) -> None:
        pipe.scheduler = copy.deepcopy(scheduler)
        if as_in_jobs:
            step_on_host(pipe.scheduler)
        with pinned_step_noise(pipe.scheduler) if as_in_jobs else nullcontext():
            _draw(pipe, session.work, embeds, steps)

    call_seconds(lambda: draw(STEPS))
    few = median_seconds(lambda: draw(STEPS), 1.0, 4)
    many = median_seconds(lambda: draw(2 * STEPS), 1.0, 4)
    step = 1000 * (many - few) / STEPS
    session.report.figure("samplers.step", step, "ms", sampler=name)


def _draw(pipe: Untyped, work: Work, embeds: torch.Tensor, steps: int) -> None:
    pipe(
        prompt_embeds=embeds,
        negative_prompt_embeds=embeds,
        guidance_scale=work.guidance,
        num_inference_steps=steps,
        height=work.side,
        width=work.side,
        generator=[torch.Generator().manual_seed(seed) for seed in range(len(embeds))],
        output_type="latent",
    )
