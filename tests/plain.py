"""Tiny pipelines with random weights of families unknown to Imagekiln: they take the plain path."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import diffusers
import torch
import transformers

from tests.families import VOCABULARY, decoder, flow, tiny_qwen_vae, words
from tests.models import (
    SIDE,
    WIDE,
    Untyped,
    clip_tokenizer,
    copy_of_pipe,
    saved,
    tiny_clip,
    tiny_t5,
    tiny_vae,
)


@cache
def folder(kind: str) -> Path:
    """A saved pipeline, as a job names it."""
    return saved(kind, MAKE[kind])


def pipe(kind: str) -> Untyped:
    """A loaded pipeline of its own, on the CPU in float32."""
    return copy_of_pipe(folder(kind), torch.float32)


def _cogview3() -> Untyped:
    return diffusers.CogView3PlusPipeline(
        transformer=diffusers.CogView3PlusTransformer2DModel(
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=4,
            num_attention_heads=2,
            text_embed_dim=2 * WIDE,
            time_embed_dim=8,
            condition_dim=2,
            pos_embed_max_size=16,
            sample_size=SIDE // 2,
        ),
        vae=tiny_vae(latent_channels=4),
        text_encoder=tiny_t5(),
        tokenizer=words(),
        scheduler=diffusers.CogVideoXDDIMScheduler(),
    )


def _lumina() -> Untyped:
    return diffusers.LuminaPipeline(
        transformer=diffusers.LuminaNextDiT2DModel(
            sample_size=SIDE // 2,
            patch_size=2,
            in_channels=4,
            hidden_size=8,
            num_layers=2,
            num_attention_heads=1,
            num_kv_heads=1,
            multiple_of=16,
            learn_sigma=True,
            qk_norm=True,
            cross_attention_dim=WIDE,
            scaling_factor=1.0,
        ),
        vae=tiny_vae((4, 4, 8, 8), latent_channels=4),
        text_encoder=transformers.GemmaModel(decoder(transformers.GemmaConfig)),
        tokenizer=words(),
        scheduler=flow(),
    )


def _bria() -> Untyped:
    return diffusers.BriaPipeline(
        transformer=diffusers.BriaTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=2 * WIDE,
            pooled_projection_dim=None,
            axes_dims_rope=[0, 4, 4],
        ),
        vae=tiny_vae(latent_channels=4, shift_factor=0.0),
        text_encoder=tiny_t5(),
        tokenizer=words(),
        scheduler=flow(),
    )


def _amused() -> Untyped:
    return diffusers.AmusedPipeline(
        transformer=diffusers.UVit2DModel(
            hidden_size=8,
            cond_embed_dim=WIDE,
            micro_cond_encode_dim=2,
            micro_cond_embed_dim=10,
            encoder_hidden_size=WIDE,
            vocab_size=32,
            codebook_size=32,
            in_channels=8,
            block_out_channels=8,
            num_res_blocks=1,
            block_num_heads=1,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
        ),
        vqvae=diffusers.VQModel(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=8,
            norm_num_groups=8,
            num_vq_embeddings=32,
            lookup_from_codebook=True,
        ),
        text_encoder=transformers.CLIPTextModelWithProjection(tiny_clip()),
        tokenizer=clip_tokenizer(),
        scheduler=diffusers.AmusedScheduler(mask_token_id=31),
    )


def _krea2() -> Untyped:
    text = {
        "hidden_size": WIDE,
        "intermediate_size": WIDE,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": WIDE // 2,
        "rope_parameters": {"mrope_section": [2, 3, 3], "rope_type": "default", "rope_theta": 1e6},
        "vocab_size": VOCABULARY,
    }
    sight = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    sight["out_hidden_size"] = WIDE
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=sight)
    return diffusers.Krea2Pipeline(
        transformer=diffusers.Krea2Transformer2DModel(
            in_channels=16,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
            timestep_embed_dim=8,
            text_hidden_dim=WIDE,
            num_text_layers=2,
            text_num_attention_heads=2,
            text_num_key_value_heads=1,
            text_intermediate_size=16,
            num_layerwise_text_blocks=1,
            num_refiner_text_blocks=1,
            axes_dims_rope=(4, 2, 2),
        ),
        vae=tiny_qwen_vae(),
        text_encoder=transformers.Qwen3VLModel(config),
        tokenizer=words(),
        scheduler=flow(use_dynamic_shifting=True, base_image_seq_len=256, max_image_seq_len=6400),
        text_encoder_select_layers=(0, 1),
    )


MAKE: dict[str, Callable[[], Untyped]] = {
    "cogview3": _cogview3,
    "lumina": _lumina,
    "bria": _bria,
    "amused": _amused,
    "krea2": _krea2,
}
