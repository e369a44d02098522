"""Diffusers pipelines with random weights: real in every way but size, built once in a session."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import diffusers
import torch
import transformers

from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests import tiny

Untyped: TypeAlias = Any  # diffusers and transformers have no types to speak of
Kind = Literal["sd", "sdxl", "sd3", "flux", "shapes"]
SHAPES = BUNDLED_FOLDER / "shapes"
SIDE = tiny.SIDE
scratch = tiny.scratch
WIDE = 32  # channels of text
# Some schedulers of diffusers pass tensors to numpy in ways of which numpy 2 warns.
DIFFUSERS_WARNS = "ignore:__array_:DeprecationWarning"
# FluxControlNetModel imports its embedding from a deprecated place.
FLUX_WARNS = "ignore:`FluxPosEmbed` is deprecated:FutureWarning"

# On a busy machine, threads that wait for each other make a batch take ten times as long.
torch.set_num_threads(1)
for library in (diffusers, transformers):
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()


def saved(name: str, make: Callable[[], Untyped]) -> Path:
    """What `make` makes with random weights, always the same, as a job names it."""
    target = scratch(name)
    torch.manual_seed(7)
    make().save_pretrained(target)
    return target


@cache
def folder(kind: Kind) -> Path:
    """A saved pipeline, as a job names it."""
    if kind == "shapes":
        return SHAPES
    return saved(kind, BUILD[kind])


def pipe(kind: Kind) -> Untyped:
    """A loaded pipeline of its own, on the CPU in float32."""
    return copy_of_pipe(folder(kind), torch.float32)


def copy_of_pipe(folder: Path, dtype: torch.dtype) -> Untyped:
    """A pipeline of its own, copied from one that is loaded once: half the time or less."""
    return copy.deepcopy(_loaded(folder, dtype))


@cache
def _loaded(folder: Path, dtype: torch.dtype) -> Untyped:
    loaded = diffusers.DiffusionPipeline.from_pretrained(folder, dtype=dtype)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def _sd() -> Untyped:
    return _stable_diffusion(tiny_unet(WIDE), tiny_vae(latent_channels=4))


def _stable_diffusion(unet: Untyped, vae: Untyped) -> Untyped:
    return diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=transformers.CLIPTextModel(tiny_clip()),
        tokenizer=clip_tokenizer(),
        unet=unet,
        scheduler=ddim(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def one_block_sd() -> Untyped:
    """A Stable Diffusion whose network has one block on either side: quicker to compile."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=SIDE,
        block_out_channels=(8,),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        cross_attention_dim=WIDE,
        down_block_types=("CrossAttnDownBlock2D",),
        mid_block_type=None,
        up_block_types=("CrossAttnUpBlock2D",),
    )
    return _stable_diffusion(unet, tiny_vae((8,), layers_per_block=1, latent_channels=4))


def _sdxl() -> Untyped:
    more = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + WIDE,
    }
    return diffusers.StableDiffusionXLPipeline(
        vae=tiny_vae(latent_channels=4),
        text_encoder=transformers.CLIPTextModel(tiny_clip()),
        text_encoder_2=transformers.CLIPTextModelWithProjection(tiny_clip()),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(),
        unet=tiny_unet(2 * WIDE, **more),
        scheduler=diffusers.EulerDiscreteScheduler(
            beta_schedule="scaled_linear", timestep_spacing="leading"
        ),
    )


def _sd3() -> Untyped:
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=SIDE // 2,
        patch_size=1,
        in_channels=16,  # as the real ones have: inpainting refuses others
        out_channels=16,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=2 * WIDE,
        caption_projection_dim=32,
        pooled_projection_dim=2 * WIDE,
    )
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=tiny_vae(latent_channels=16, shift_factor=0.1),
        text_encoder=transformers.CLIPTextModelWithProjection(tiny_clip()),
        text_encoder_2=transformers.CLIPTextModelWithProjection(tiny_clip()),
        text_encoder_3=tiny_t5(),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(),
        tokenizer_3=clip_tokenizer(),
    )


def _flux() -> Untyped:
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=2 * WIDE,
        pooled_projection_dim=WIDE,
        axes_dims_rope=[4, 4, 8],
        guidance_embeds=True,
    )
    return diffusers.FluxPipeline(
        transformer=transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=tiny_vae(latent_channels=4, shift_factor=0.1),
        text_encoder=transformers.CLIPTextModel(tiny_clip()),
        text_encoder_2=tiny_t5(),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(),
    )


BUILD = {"sd": _sd, "sdxl": _sdxl, "sd3": _sd3, "flux": _flux}


def clip_tokenizer() -> Untyped:
    """The bundled model's tokenizer."""
    return transformers.CLIPTokenizer.from_pretrained(SHAPES / "tokenizer")


def tiny_clip(tokens: int = 24) -> Untyped:
    """What CLIP's text models are made from. They read so many tokens."""
    return transformers.CLIPTextConfig(
        vocab_size=626,
        hidden_size=WIDE,
        intermediate_size=4 * WIDE,
        projection_dim=WIDE,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=tokens,
        bos_token_id=624,
        eos_token_id=625,
        pad_token_id=625,
    )


def tiny_t5() -> Untyped:
    """A T5 encoder, 2 * WIDE channels wide."""
    config = transformers.T5Config(
        vocab_size=626, d_model=2 * WIDE, d_ff=4 * WIDE, d_kv=16, num_layers=1, num_heads=4
    )
    return transformers.T5EncoderModel(config)


def tiny_unet(text: int, **more: object) -> Untyped:
    """A UNet that reads texts of this many channels."""
    return diffusers.UNet2DConditionModel(
        sample_size=SIDE // 2,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        cross_attention_dim=text,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        **more,
    )


def tiny_vae(channels: tuple[int, ...] = (8, 16), **more: object) -> Untyped:
    """A VAE that halves the sides once less often than it has `channels`."""
    return diffusers.AutoencoderKL(
        block_out_channels=channels,
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        scaling_factor=0.5,
        **more,
    )


def ddim() -> Untyped:
    """Stable Diffusion's scheduler."""
    return diffusers.DDIMScheduler(
        beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False, steps_offset=1
    )
