"""Tiny pipelines with random weights that edit pictures by instruction."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import diffusers
import torch
import transformers

from tests import families, models, plain
from tests.families import flow, tiny_qwen_vae, tiny_wan_vae
from tests.models import WIDE, Untyped, copy_of_pipe, saved, tiny_unet
from tests.plain import kandinsky5_parts
from tests.plain_unets import TEXT_AND_TIME, sharing
from tests.vision_language import processor, qwen3, qwen25, seeing_words


@cache
def folder(kind: str) -> Path:
    """A saved pipeline, as a job names it."""
    return saved(kind, MAKE[kind])


def pipe(kind: str) -> Untyped:
    """A loaded pipeline of its own, on the CPU in float32."""
    return copy_of_pipe(folder(kind), torch.float32)


def _qwen_image_edit(name: str, **scheduler: object) -> Untyped:
    return getattr(diffusers, name)(
        scheduler=flow(**scheduler),
        vae=tiny_qwen_vae(),
        text_encoder=qwen25(),
        tokenizer=seeing_words(),
        processor=processor("2.5"),
        transformer=families.pipe("qwen-image").transformer,
    )


def _flux_fill() -> Untyped:
    config = {**models.pipe("flux").transformer.config, "in_channels": 48, "out_channels": 16}
    transformer = diffusers.FluxTransformer2DModel.from_config(config)
    return sharing("FluxFillPipeline", models.pipe("flux"), transformer=transformer)


def _longcat_edit() -> Untyped:
    return sharing("LongCatImageEditPipeline", plain.pipe("longcat"))


def _joy(name: str, transformer: Callable[..., Untyped]) -> Untyped:
    return getattr(diffusers, name)(
        transformer=transformer(
            patch_size=[1, 2, 2],
            in_channels=16,
            hidden_size=32,
            num_attention_heads=2,
            text_dim=WIDE,
            num_layers=1,
            rope_dim_list=[4, 6, 6],
            theta=256,
        ),
        vae=tiny_wan_vae(),
        scheduler=flow(),
        text_encoder=qwen3(),
        tokenizer=seeing_words(),
        processor=processor("3"),
    )


def _z_image_omni() -> Untyped:
    plain_pipe = families.pipe("z-image")
    config = {**plain_pipe.transformer.config, "siglip_feat_dim": 16, "axes_lens": [512, 256, 256]}
    transformer = diffusers.ZImageTransformer2DModel.from_config(config)
    for name, parameter in transformer.named_parameters():
        if "pad_token" in name:  # made without values
            parameter.data.fill_(0.5)
    sight = transformers.Siglip2VisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_patches=64,
        patch_size=8,
    )
    return sharing(
        "ZImageOmniPipeline",
        plain_pipe,
        transformer=transformer,
        siglip=transformers.Siglip2VisionModel(sight),
        siglip_processor=transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=64),
    )


def _pix2pix() -> Untyped:
    unet = tiny_unet(WIDE, in_channels=8)
    return sharing("StableDiffusionInstructPix2PixPipeline", models.pipe("sd"), unet=unet)


def _pix2pix_xl() -> Untyped:
    unet = tiny_unet(2 * WIDE, in_channels=8, **TEXT_AND_TIME)
    return sharing("StableDiffusionXLInstructPix2PixPipeline", models.pipe("sdxl"), unet=unet)


MAKE: dict[str, Callable[[], Untyped]] = {
    "qwen-image-edit": lambda: _qwen_image_edit("QwenImageEditPipeline"),
    "qwen-image-edit-plus": lambda: _qwen_image_edit("QwenImageEditPlusPipeline"),
    "qwen-image-layered": lambda: _qwen_image_edit("QwenImageLayeredPipeline"),
    "flux-fill": _flux_fill,
    "kandinsky5-edit": lambda: diffusers.Kandinsky5I2IPipeline(**kandinsky5_parts(sees=True)),
    "fibo-edit": lambda: sharing("BriaFiboEditPipeline", plain.pipe("fibo")),
    "longcat-edit": _longcat_edit,
    "joy-edit": lambda: _joy("JoyImageEditPipeline", diffusers.JoyImageEditTransformer3DModel),
    "joy-edit-plus": lambda: _joy(
        "JoyImageEditPlusPipeline", diffusers.JoyImageEditPlusTransformer3DModel
    ),
    "z-image-omni": _z_image_omni,
    "pix2pix": _pix2pix,
    "pix2pix-xl": _pix2pix_xl,
}
