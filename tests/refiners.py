"""A tiny SDXL refiner with random weights, with the text encoder and the VAE of the tiny SDXL in tests.models."""

from functools import cache
from pathlib import Path

import diffusers
import torch

from tests import models
from tests.models import WIDE, Untyped, tiny_unet, tiny_vae

TIMES = 8  # channels of each number of the size, and of the aesthetic score


@cache
def folder(*, own_vae: bool = False) -> Path:
    """A saved refiner, as a job names it; with another VAE than the base's where it has its own."""
    target = models.scratch("refiner")
    torch.manual_seed(11)
    base = models.pipe("sdxl")
    unet = tiny_unet(
        WIDE,
        addition_embed_type="text_time",
        addition_time_embed_dim=TIMES,
        projection_class_embeddings_input_dim=5 * TIMES + WIDE,
    )
    diffusers.StableDiffusionXLImg2ImgPipeline(
        vae=tiny_vae(latent_channels=4) if own_vae else base.vae,
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=base.text_encoder_2,
        tokenizer_2=base.tokenizer_2,
        unet=unet,
        scheduler=base.scheduler,
        requires_aesthetics_score=True,
        force_zeros_for_empty_prompt=False,
    ).save_pretrained(target)
    return target


def pipe(*, own_vae: bool = False) -> Untyped:
    """A loaded refiner of its own, on the CPU in float32."""
    loaded = diffusers.DiffusionPipeline.from_pretrained(folder(own_vae=own_vae), dtype=torch.float32)
    loaded.set_progress_bar_config(disable=True)
    return loaded
