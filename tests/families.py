"""Tiny pipelines with random weights of the families that `tests.models` lacks."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import diffusers
import tokenizers
import torch
import transformers
from diffusers.guiders import AdaptiveProjectedMixGuidance

from tests.models import (
    BUILD,
    SIDE,
    WIDE,
    Untyped,
    clip_tokenizer,
    copy_of_pipe,
    saved,
    tiny_clip,
    tiny_t5,
    tiny_unet,
    tiny_vae,
)

WORDS = (
    "a red circle on the blue square above two green triangles "
    "and yellow star of small large text in it"
)
VOCABULARY = 400
# As chat models have them: the roles, and what a person wrote, as text or as pieces of text.
CHAT = (
    "{% for message in messages %}<{{ message['role'] }}>"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for piece in message['content'] %}{{ piece['text'] }}{% endfor %}"
    "{% endif %}{% endfor %}"
)


# Pixels: the smallest side that a family draws. The others draw SIDE.
SIDES = {
    "hunyuan-image": 64,
    "lumina2": 32,
    "qwen-image": 32,
    "sana": 32,
    "sana-sprint": 32,
}


@cache
def folder(kind: str) -> Path:
    """A saved pipeline, as a job names it."""
    return saved(kind, MAKE[kind])


def pipe(kind: str, dtype: torch.dtype = torch.float32) -> Untyped:
    """A loaded pipeline of its own, on the CPU."""
    return copy_of_pipe(folder(kind), dtype)


def words(**special: str) -> Untyped:
    """A tokenizer of whole words where it knows them, of bytes elsewhere.

    `special` are more of its special tokens, by the names of its attributes.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "</s>", "<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 9, trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",  # noqa: S106  # a word, no password
        eos_token="</s>",  # noqa: S106
        bos_token="<s>",  # noqa: S106
        chat_template=CHAT,
        model_max_length=1024,
        extra_special_tokens=special,
    )


def decoder(config: Callable[..., Untyped], **more: object) -> Untyped:
    """What a text model that reads from left to right is made from."""
    return config(
        vocab_size=VOCABULARY,
        hidden_size=WIDE,
        intermediate_size=WIDE,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=WIDE // 2,
        max_position_embeddings=2048,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        **more,
    )


def _gemma() -> Untyped:
    return transformers.Gemma2Model(decoder(transformers.Gemma2Config))


def qwen_vl() -> Untyped:
    """A Qwen 2.5 that reads texts and pictures."""
    text = {
        "hidden_size": WIDE,
        "intermediate_size": WIDE,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {"mrope_section": [2, 2, 4], "rope_type": "default", "rope_theta": 1e6},
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    }
    sight = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": WIDE,
    }
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=sight)
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def flow(**more: object) -> Untyped:
    """The scheduler of models that flow from noise to image."""
    return diffusers.FlowMatchEulerDiscreteScheduler(**more)


def _lcm() -> Untyped:
    return diffusers.LatentConsistencyModelPipeline(
        vae=tiny_vae(latent_channels=4),
        text_encoder=transformers.CLIPTextModel(tiny_clip()),
        tokenizer=clip_tokenizer(),
        unet=tiny_unet(WIDE, time_cond_proj_dim=8),
        scheduler=diffusers.LCMScheduler(
            beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _flux2_parts(*, guided: bool) -> dict[str, Untyped]:
    return {
        "transformer": diffusers.Flux2Transformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=3 * WIDE,
            timestep_guidance_channels=16,
            axes_dims_rope=[4, 4, 4, 4],
            guidance_embeds=guided,
        ),
        "vae": tiny_flux2_vae(),
        "scheduler": flow(),
        "tokenizer": words(),
    }


def tiny_flux2_vae() -> Untyped:
    """The autoencoder of FLUX.2."""
    return diffusers.AutoencoderKLFlux2(
        block_out_channels=(8, 16),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )


def _flux2() -> Untyped:
    text = decoder(transformers.MistralConfig).to_dict() | {
        "model_type": "mistral",
        "num_hidden_layers": 31,
    }
    sight = {
        "model_type": "pixtral",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": 30,
        "patch_size": 6,
    }
    config = transformers.Mistral3Config(text_config=text, vision_config=sight, image_token_index=3)
    encoder = transformers.Mistral3ForConditionalGeneration(config)
    return diffusers.Flux2Pipeline(text_encoder=encoder, **_flux2_parts(guided=True))


def _klein() -> Untyped:
    config = decoder(transformers.Qwen3Config)
    config.num_hidden_layers = 28
    config.layer_types = ["full_attention"] * 28
    encoder = transformers.Qwen3ForCausalLM(config)
    return diffusers.Flux2KleinPipeline(
        text_encoder=encoder, is_distilled=False, **_flux2_parts(guided=False)
    )


def _chroma() -> Untyped:
    return diffusers.ChromaPipeline(
        transformer=diffusers.ChromaTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=2 * WIDE,
            axes_dims_rope=[4, 4, 8],
            approximator_hidden_dim=16,
            approximator_layers=1,
            approximator_num_channels=16,
        ),
        vae=tiny_vae(latent_channels=4, shift_factor=0.1),
        text_encoder=tiny_t5(),
        tokenizer=words(),
        scheduler=flow(),
    )


def _pixart_parts() -> dict[str, Untyped]:
    return {
        "transformer": diffusers.PixArtTransformer2DModel(
            sample_size=SIDE // 2,
            num_layers=1,
            patch_size=2,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_channels=2 * WIDE,
            cross_attention_dim=32,
            in_channels=4,
            out_channels=8,
            norm_type="ada_norm_single",
        ),
        "vae": tiny_vae(latent_channels=4),
        "text_encoder": tiny_t5(),
        "tokenizer": words(),
        "scheduler": diffusers.DPMSolverMultistepScheduler(),
    }


def _pixart_alpha() -> Untyped:
    return diffusers.PixArtAlphaPipeline(**_pixart_parts())


def _pixart_sigma() -> Untyped:
    return diffusers.PixArtSigmaPipeline(**_pixart_parts())


def _sana_parts(**more: object) -> dict[str, Untyped]:
    return {
        "transformer": diffusers.SanaTransformer2DModel(
            patch_size=1,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            num_attention_heads=2,
            attention_head_dim=8,
            num_cross_attention_heads=2,
            cross_attention_head_dim=8,
            cross_attention_dim=16,
            caption_channels=WIDE,
            sample_size=SIDE // 2,
            **more,
        ),
        "vae": diffusers.AutoencoderDC(
            latent_channels=4,
            attention_head_dim=2,
            encoder_block_types=("ResBlock", "EfficientViTBlock"),
            decoder_block_types=("ResBlock", "EfficientViTBlock"),
            encoder_block_out_channels=(8, 8),
            decoder_block_out_channels=(8, 8),
            encoder_qkv_multiscales=((), (5,)),
            decoder_qkv_multiscales=((), (5,)),
            encoder_layers_per_block=(1, 1),
            decoder_layers_per_block=(1, 1),
            downsample_block_type="conv",
            upsample_block_type="interpolate",
            decoder_norm_types="rms_norm",
            decoder_act_fns="silu",
            scaling_factor=0.5,
        ),
        "text_encoder": _gemma(),
        "tokenizer": words(),
    }


def _sana() -> Untyped:
    return diffusers.SanaPipeline(scheduler=flow(shift=7.0), **_sana_parts())


def _sana_sprint() -> Untyped:
    parts = _sana_parts(qk_norm="rms_norm_across_heads", guidance_embeds=True)
    return diffusers.SanaSprintPipeline(scheduler=diffusers.SCMScheduler(), **parts)


def _aura_flow() -> Untyped:
    transformer = diffusers.AuraFlowTransformer2DModel(
        sample_size=SIDE // 2,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=2 * WIDE,
        pos_embed_max_size=256,
    )
    with torch.no_grad():  # as made, the text changes no pixel
        for weights in transformer.parameters():
            weights.mul_(3)
    return diffusers.AuraFlowPipeline(
        transformer=transformer,
        vae=tiny_vae(latent_channels=4),
        text_encoder=tiny_t5(),
        tokenizer=words(),
        scheduler=flow(),
    )


def _lumina2() -> Untyped:
    return diffusers.Lumina2Pipeline(
        transformer=diffusers.Lumina2Transformer2DModel(
            sample_size=SIDE // 2,
            patch_size=2,
            in_channels=4,
            hidden_size=16,
            num_layers=1,
            num_attention_heads=2,
            num_kv_heads=2,
            multiple_of=16,
            axes_dim_rope=[4, 2, 2],
            axes_lens=[512, 64, 64],
            cap_feat_dim=WIDE,
        ),
        # This family takes every VAE for one of factor 8.
        vae=tiny_vae((4, 4, 8, 8), latent_channels=4, shift_factor=0.1),
        text_encoder=_gemma(),
        tokenizer=words(),
        scheduler=flow(),
    )


def tiny_qwen_vae() -> Untyped:
    """The autoencoder of Qwen-Image."""
    return diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )


def tiny_wan_vae(**more: object) -> Untyped:
    """The autoencoder of Wan, which several image models use."""
    return diffusers.AutoencoderKLWan(
        base_dim=8,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 16,
        latents_std=[1.0] * 16,
        **more,
    )


def _qwen() -> Untyped:
    return diffusers.QwenImagePipeline(
        transformer=diffusers.QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDE,
            axes_dims_rope=(8, 4, 4),
        ),
        vae=tiny_qwen_vae(),
        text_encoder=qwen_vl(),
        tokenizer=words(),
        scheduler=flow(),
    )


def _ovis() -> Untyped:
    return diffusers.OvisImagePipeline(
        transformer=diffusers.OvisImageTransformer2DModel(
            in_channels=16,
            out_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDE,
            axes_dims_rope=(8, 4, 4),
        ),
        vae=tiny_vae(latent_channels=4, shift_factor=0.1),
        text_encoder=transformers.Qwen3Model(decoder(transformers.Qwen3Config)),
        tokenizer=words(),
        scheduler=flow(),
    )


def _z_image() -> Untyped:
    transformer = diffusers.ZImageTransformer2DModel(
        all_patch_size=(2,),
        all_f_patch_size=(1,),
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=WIDE,
        axes_dims=[8, 4, 4],
        axes_lens=[512, 64, 64],
    )
    with torch.no_grad():  # made without values
        transformer.x_pad_token.fill_(1.0)
        transformer.cap_pad_token.fill_(1.0)
    return diffusers.ZImagePipeline(
        transformer=transformer,
        vae=tiny_vae(latent_channels=4, shift_factor=0.1),
        text_encoder=transformers.Qwen3Model(decoder(transformers.Qwen3Config)),
        tokenizer=words(),
        scheduler=flow(),
    )


def _cogview4() -> Untyped:
    return diffusers.CogView4Pipeline(
        transformer=diffusers.CogView4Transformer2DModel(
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            text_embed_dim=WIDE,
            time_embed_dim=8,
            condition_dim=4,
        ),
        vae=tiny_vae(latent_channels=4),
        text_encoder=transformers.GlmForCausalLM(decoder(transformers.GlmConfig)),
        tokenizer=words(),
        scheduler=flow(
            base_shift=0.25,
            max_shift=0.75,
            base_image_seq_len=256,
            use_dynamic_shifting=True,
            time_shift_type="linear",
        ),
    )


def _hunyuan_image() -> Untyped:
    byt5 = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDE, d_ff=WIDE, d_kv=16, num_layers=1, num_heads=2
    )
    return diffusers.HunyuanImagePipeline(
        transformer=diffusers.HunyuanImageTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=(1, 1),
            text_embed_dim=WIDE,
            text_embed_2_dim=WIDE,
            rope_axes_dim=(8, 8),
        ),
        vae=diffusers.AutoencoderKLHunyuanImage(
            in_channels=3,
            out_channels=3,
            latent_channels=4,
            block_out_channels=(32,) * 6,
            layers_per_block=1,
            spatial_compression_ratio=32,
            sample_size=64,
            scaling_factor=0.5,
        ),
        text_encoder=qwen_vl(),
        tokenizer=words(),
        text_encoder_2=transformers.T5EncoderModel(byt5),
        tokenizer_2=words(),
        scheduler=flow(),
        guider=AdaptiveProjectedMixGuidance(adaptive_projected_guidance_start_step=1),
        ocr_guider=AdaptiveProjectedMixGuidance(adaptive_projected_guidance_start_step=1),
    )


MAKE: dict[str, Callable[[], Untyped]] = {
    **BUILD,
    "lcm": _lcm,
    "flux2": _flux2,
    "klein": _klein,
    "chroma": _chroma,
    "pixart-alpha": _pixart_alpha,
    "pixart-sigma": _pixart_sigma,
    "sana": _sana,
    "sana-sprint": _sana_sprint,
    "aura-flow": _aura_flow,
    "lumina2": _lumina2,
    "qwen-image": _qwen,
    "ovis": _ovis,
    "z-image": _z_image,
    "cogview4": _cogview4,
    "hunyuan-image": _hunyuan_image,
}
