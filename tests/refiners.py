"""Tiny pipelines with random weights that draw over images, such as SDXL's refiner."""

from functools import cache
from pathlib import Path

import diffusers
import transformers

from tests.models import WIDE, Untyped, clip_tokenizer, saved, tiny_clip, tiny_unet, tiny_vae


@cache
def refiner_folder() -> Path:
    """A pipeline as SDXL's refiner: of the class that draws over images, with one text encoder."""
    return saved("refiner", _refiner)


def _refiner() -> Untyped:
    more = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 5 * 8 + WIDE,
    }
    return diffusers.StableDiffusionXLImg2ImgPipeline(
        vae=tiny_vae(latent_channels=4),
        text_encoder=None,
        text_encoder_2=transformers.CLIPTextModelWithProjection(tiny_clip()),
        tokenizer=None,
        tokenizer_2=clip_tokenizer(),
        unet=tiny_unet(WIDE, **more),
        scheduler=diffusers.EulerDiscreteScheduler(
            beta_schedule="scaled_linear", timestep_spacing="leading"
        ),
        requires_aesthetics_score=True,
        force_zeros_for_empty_prompt=False,
    )
