"""Tiny pipelines with random weights of transformers that no table knows."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import diffusers
import torch
import transformers
from transformers.models.t5gemma.modeling_t5gemma import T5GemmaEncoder

from tests.families import (
    VOCABULARY,
    decoder,
    flow,
    tiny_flux2_vae,
    tiny_qwen_vae,
    tiny_wan_vae,
    words,
)
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
from tests.vision_language import processor, qwen3, qwen25, seeing_words

PRX = {"patch_size": 1, "hidden_size": 16, "num_heads": 4, "depth": 1, "axes_dim": [2, 2]}
# Pipelines that generate one size or area.
SIDES = {"hidream": 256, "kandinsky5": 1024}


@cache
def folder(kind: str) -> Path:
    """A saved pipeline, as a job names it."""
    return saved(kind, MAKE[kind])


def side_of(kind: str) -> int:
    """Pixels of a side of the images that tests draw with it."""
    return SIDES.get(kind, 64)


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
            pos_embed_max_size=64,
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
        text_encoder=qwen3(head=False),
        tokenizer=words(),
        scheduler=flow(use_dynamic_shifting=True, base_image_seq_len=256, max_image_seq_len=6400),
        text_encoder_select_layers=(0, 1),
    )


def _ernie() -> Untyped:
    return diffusers.ErnieImagePipeline(
        transformer=diffusers.ErnieImageTransformer2DModel(
            hidden_size=32,
            num_attention_heads=2,
            num_layers=2,
            ffn_hidden_size=32,
            in_channels=16,
            out_channels=16,
            text_in_dim=WIDE,
            rope_axes_dim=(4, 6, 6),
        ),
        vae=tiny_flux2_vae(),
        text_encoder=transformers.MistralModel(decoder(transformers.MistralConfig)),
        tokenizer=words(),
        scheduler=flow(),
    )


def _ideogram4() -> Untyped:
    def transformer() -> Untyped:
        return diffusers.Ideogram4Transformer2DModel(
            in_channels=16,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            intermediate_size=32,
            adaln_dim=8,
            llm_features_dim=13 * WIDE,
            mrope_section=(2, 2, 2),
        )

    return diffusers.Ideogram4Pipeline(
        scheduler=flow(),
        vae=tiny_flux2_vae(),
        text_encoder=qwen3(36, head=False),
        tokenizer=words(),
        transformer=transformer(),
        unconditional_transformer=transformer(),
    )


def _longcat() -> Untyped:
    return diffusers.LongCatImagePipeline(
        scheduler=flow(use_dynamic_shifting=True, base_image_seq_len=256, max_image_seq_len=4096),
        vae=tiny_vae((4, 4, 4, 4), latent_channels=16, shift_factor=0.0),
        text_encoder=qwen25(),
        tokenizer=seeing_words(),
        text_processor=processor("2.5"),
        transformer=diffusers.LongCatImageTransformer2DModel(
            in_channels=64,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDE,
            pooled_projection_dim=WIDE,
            axes_dims_rope=[4, 6, 6],
        ),
    )


def _hidream() -> Untyped:
    return diffusers.HiDreamImagePipeline(
        scheduler=flow(),
        vae=tiny_vae(latent_channels=4, shift_factor=0.1),
        text_encoder=transformers.CLIPTextModelWithProjection(tiny_clip(128)),
        tokenizer=clip_tokenizer(),
        text_encoder_2=transformers.CLIPTextModelWithProjection(tiny_clip(128)),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=tiny_t5(),
        tokenizer_3=clip_tokenizer(),
        text_encoder_4=transformers.LlamaForCausalLM(decoder(transformers.LlamaConfig)),
        tokenizer_4=words(),
        transformer=diffusers.HiDreamImageTransformer2DModel(
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_channels=[2 * WIDE, WIDE],
            text_emb_dim=2 * WIDE,
            num_routed_experts=4,
            num_activated_experts=2,
            axes_dims_rope=(4, 2, 2),
            max_resolution=(32, 32),
            llama_layers=(0, 1),
        ),
    )


def kandinsky5_parts(*, sees: bool) -> dict[str, Untyped]:
    """The components of Kandinsky 5, which starts from a picture if it `sees`."""
    return {
        "transformer": diffusers.Kandinsky5Transformer3DModel(
            in_visual_dim=4,
            in_text_dim=WIDE,
            in_text_dim2=WIDE,
            time_dim=16,
            out_visual_dim=4,
            patch_size=(1, 2, 2),
            model_dim=16,
            ff_dim=32,
            num_text_blocks=1,
            num_visual_blocks=1,
            axes_dims=(4, 6, 6),
            visual_cond=sees,
            attention_type="regular",
        ),
        "vae": tiny_vae((8, 8, 8, 8), latent_channels=4),
        "text_encoder": qwen25(),
        "tokenizer": processor("2.5"),
        "text_encoder_2": transformers.CLIPTextModel(tiny_clip(77)),
        "tokenizer_2": clip_tokenizer(),
        "scheduler": flow(shift=7.0),
    }


def _kandinsky5() -> Untyped:
    return diffusers.Kandinsky5T2IPipeline(**kandinsky5_parts(sees=False))


def _hunyuan_dit() -> Untyped:
    bert = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDE,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDE,
    )
    return diffusers.HunyuanDiTPipeline(
        vae=tiny_vae((4, 4, 8, 8), latent_channels=4),
        text_encoder=transformers.BertModel(bert),
        tokenizer=words(),
        text_encoder_2=tiny_t5(),
        tokenizer_2=clip_tokenizer(),
        transformer=diffusers.HunyuanDiT2DModel(
            sample_size=16,
            num_layers=2,
            patch_size=2,
            attention_head_dim=8,
            num_attention_heads=3,
            in_channels=4,
            cross_attention_dim=WIDE,
            cross_attention_dim_t5=2 * WIDE,
            pooled_projection_dim=16,
            hidden_size=24,
            activation_fn="gelu-approximate",
        ),
        scheduler=diffusers.DDPMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _nucleus() -> Untyped:
    return diffusers.NucleusMoEImagePipeline(
        transformer=diffusers.NucleusMoEImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDE,
            axes_dims_rope=(8, 4, 4),
            moe_enabled=False,
            capacity_factors=[8.0, 8.0],
        ),
        scheduler=flow(),
        vae=tiny_qwen_vae(),
        text_encoder=qwen3(8),
        processor=processor("3"),
    )


def _omnigen() -> Untyped:
    return diffusers.OmniGenPipeline(
        transformer=diffusers.OmniGenTransformer2DModel(
            hidden_size=16,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=32,
            num_layers=1,
            in_channels=4,
            time_step_dim=4,
            vocab_size=VOCABULARY,
            pad_token_id=0,
            rope_scaling={"long_factor": [1, 2], "short_factor": [1, 2]},
        ),
        scheduler=flow(invert_sigmas=True, num_train_timesteps=1),
        vae=tiny_vae((4, 4, 4, 4), latent_channels=4),
        tokenizer=words(),
    )


def _prx() -> Untyped:
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 256,
        "layer_types": ["full_attention"],
        "dropout_rate": 0.0,
    }
    # Its own configuration is that of the encoder, in the class of a whole T5Gemma.
    encoder = transformers.T5GemmaModuleConfig(**sizes)
    config = transformers.T5GemmaConfig(
        **{**encoder.to_dict(), "encoder": encoder, "is_encoder_decoder": False}
    )
    return diffusers.PRXPipeline(
        transformer=diffusers.PRXTransformer2DModel(context_in_dim=8, in_channels=4, **PRX),
        scheduler=flow(),
        text_encoder=T5GemmaEncoder(config),
        tokenizer=words(),
        vae=tiny_vae(latent_channels=4, shift_factor=0.0),
        default_sample_size=SIDE,
    )


def _prx_pixel() -> Untyped:
    transformer = diffusers.PRXTransformer2DModel(
        context_in_dim=WIDE, in_channels=3, bottleneck_size=8, resolution_embeds=True, **PRX
    )
    return diffusers.PRXPixelPipeline(
        transformer=transformer,
        scheduler=flow(),
        text_encoder=transformers.Qwen3Model(decoder(transformers.Qwen3Config)),
        tokenizer=words(),
        prompt_max_tokens=64,
    )


def _fibo() -> Untyped:
    config = decoder(transformers.SmolLM3Config)
    config.vocab_size = 128_257  # an empty prompt is token 128,000
    return diffusers.BriaFiboPipeline(
        transformer=diffusers.BriaFiboTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=2 * WIDE,
            text_encoder_dim=WIDE,
            pooled_projection_dim=None,
            axes_dims_rope=[0, 4, 4],
        ),
        scheduler=flow(use_dynamic_shifting=True),
        vae=tiny_wan_vae(in_channels=12, out_channels=12, patch_size=2, is_residual=True),
        text_encoder=transformers.SmolLM3ForCausalLM(config),
        tokenizer=words(),
    )


def _fibo2() -> Untyped:
    return diffusers.BriaFibo2Pipeline(
        transformer=diffusers.BriaFibo2Transformer2DModel(
            in_channels=4,
            patch_size=2,
            dim=32,
            n_layers=2,
            n_refiner_layers=1,
            n_heads=2,
            cap_feat_dim=3 * WIDE,
            injection_layer_ids=(0,),
            perceiver_num_layers=1,
            min_num_gist_tokens=16,
            max_num_gist_tokens=32,
            gist_step=16,
            gist_min_text_len=16,
            gist_max_text_len=64,
            axes_dims=(4, 6, 6),
            axes_lens=(4096, 512, 512),
        ),
        scheduler=flow(use_dynamic_shifting=True),
        vae=tiny_flux2_vae(),
        text_encoder=qwen3(36),
        processor=processor("3"),
    )


def _qwen21() -> Untyped:
    return diffusers.QwenImage21Pipeline(
        scheduler=flow(use_dynamic_shifting=True, base_image_seq_len=256, max_image_seq_len=8192),
        vae=diffusers.AutoencoderKLQwenImage21(
            base_dim=4,
            decoder_base_dim=4,
            z_dim=4,
            dim_mult=[1, 1, 1, 1, 1],
            num_res_blocks=1,
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        ),
        text_encoder=qwen3(),
        processor=processor("3"),
        transformer=diffusers.QwenImage21Transformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            context_in_dim=WIDE,
            axes_dims_rope=(4, 6, 6),
        ),
    )


def _glm() -> Untyped:
    text = {
        "vocab_size": VOCABULARY + 100,
        "hidden_size": WIDE,
        "intermediate_size": WIDE,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "eos_token_id": 127,
        "vision_vocab_size": 128,
        "rope_parameters": {"mrope_section": (4, 2, 2)},
    }
    sight = {
        "depth": 1,
        "hidden_size": WIDE,
        "num_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "intermediate_size": WIDE,
    }
    codes = {"embed_dim": WIDE, "num_embeddings": 128, "latent_channels": WIDE}
    tokenizer = words(image_token="<image>", grid_bos_token="<grid>", grid_eos_token="</grid>")  # noqa: S106
    config = transformers.GlmImageConfig(
        text_config=text,
        vision_config=sight,
        vq_config=codes,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_start_token_id=126,
        image_end_token_id=127,
    )
    return diffusers.GlmImagePipeline(
        tokenizer=clip_tokenizer(),
        processor=transformers.GlmImageProcessor(
            transformers.GlmImageImageProcessor(patch_size=8),
            tokenizer,
            chat_template=tokenizer.chat_template,
        ),
        text_encoder=tiny_t5(),
        vision_language_encoder=transformers.GlmImageForConditionalGeneration(config),
        vae=tiny_vae(
            (4, 8, 8, 8), latent_channels=4, latents_mean=[0.0] * 4, latents_std=[1.0] * 4
        ),
        transformer=diffusers.GlmImageTransformer2DModel(
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            text_embed_dim=2 * WIDE,
            time_embed_dim=16,
            condition_dim=8,
            prior_vq_quantizer_codebook_size=128,
        ),
        scheduler=flow(),
    )


MAKE: dict[str, Callable[[], Untyped]] = {
    "cogview3": _cogview3,
    "lumina": _lumina,
    "bria": _bria,
    "amused": _amused,
    "krea2": _krea2,
    "ernie": _ernie,
    "ideogram4": _ideogram4,
    "longcat": _longcat,
    "hidream": _hidream,
    "kandinsky5": _kandinsky5,
    "hunyuan-dit": _hunyuan_dit,
    "nucleus": _nucleus,
    "omnigen": _omnigen,
    "prx": _prx,
    "prx-pixel": _prx_pixel,
    "fibo": _fibo,
    "fibo2": _fibo2,
    "qwen-image-2.1": _qwen21,
    "glm": _glm,
}
