"""Tiny pipelines with random weights of U-Nets that no table knows."""

import inspect
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import diffusers
import sentencepiece
import torch
import transformers
from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig, ChatGLMModel
from diffusers.pipelines.kolors.tokenizer import ChatGLMTokenizer
from diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer import (
    StableUnCLIPImageNormalizer,
)

from tests import families, models, plain
from tests.families import VOCABULARY, WORDS, flow
from tests.models import (
    WIDE,
    Untyped,
    clip_tokenizer,
    copy_of_pipe,
    ddim,
    saved,
    tiny_clip,
    tiny_t5,
    tiny_unet,
    tiny_vae,
)
from tests.tiny import scratch
from tests.vision_language import processor, qwen3, seeing_words

TEXT_AND_TIME = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + WIDE,
}


@cache
def folder(kind: str) -> Path:
    """A saved pipeline, as a job names it."""
    return saved(kind, MAKE[kind])


def pipe(kind: str) -> Untyped:
    """A loaded pipeline of its own, on the CPU in float32."""
    return copy_of_pipe(folder(kind), torch.float32)


def sharing(name: str, other: Untyped, **more: object) -> Untyped:
    """A pipeline of this class with the components of another one."""
    pipeline = getattr(diffusers, name)
    parameters = inspect.signature(pipeline).parameters
    if "requires_safety_checker" in parameters:
        more["requires_safety_checker"] = False
    shared = {key: part for key, part in other.components.items() if key in parameters}
    return pipeline(**{**shared, **more})


def _shared(name: str, make: Callable[[], Untyped]) -> Untyped:
    return sharing(name, make())


def _two_blocks(name: str, other: Untyped) -> Untyped:
    """The same with a transformer of two blocks: attention is perturbed in the second."""
    config = {**other.transformer.config, "num_layers": 2}
    return sharing(name, other, transformer=type(other.transformer).from_config(config))


def _kolors() -> Untyped:
    target = scratch("kolors-words")
    target.mkdir(parents=True, exist_ok=True)
    texts = target / "texts.txt"
    texts.write_text(f"{WORDS}\n" * 9)
    sentencepiece.SentencePieceTrainer.train(
        input=str(texts),
        model_prefix=str(target / "tokenizer"),
        vocab_size=70,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    config = ChatGLMConfig(
        num_layers=2,
        padded_vocab_size=VOCABULARY,
        hidden_size=WIDE,
        ffn_hidden_size=WIDE,
        kv_channels=16,
        num_attention_heads=2,
        seq_length=256,
        add_qkv_bias=True,
        original_rope=True,
    )
    text_encoder = ChatGLMModel(config)
    for parameter in text_encoder.parameters():  # made without values
        torch.nn.init.normal_(parameter, std=0.1)
    return diffusers.KolorsPipeline(
        vae=tiny_vae(latent_channels=4),
        text_encoder=text_encoder,
        tokenizer=ChatGLMTokenizer(str(target / "tokenizer.model")),
        unet=tiny_unet(16, encoder_hid_dim=WIDE, encoder_hid_dim_type="text_proj", **TEXT_AND_TIME),
        scheduler=diffusers.EulerDiscreteScheduler(
            beta_schedule="scaled_linear", timestep_spacing="leading", steps_offset=1
        ),
    )


def _kandinsky3() -> Untyped:
    decoder = diffusers.VQModel(
        block_out_channels=(32, 32, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        norm_num_groups=32,
        norm_type="spatial",
        num_vq_embeddings=12,
        vq_embed_dim=4,
        mid_block_add_attention=False,
    )
    return diffusers.Kandinsky3Pipeline(
        tokenizer=clip_tokenizer(),
        text_encoder=tiny_t5(),
        unet=diffusers.Kandinsky3UNet(
            in_channels=4,
            time_embedding_dim=4,
            groups=2,
            attention_head_dim=4,
            layers_per_block=3,
            block_out_channels=(32, 64),
            cross_attention_dim=4,
            encoder_hid_dim=2 * WIDE,
        ),
        scheduler=diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2", clip_sample=True),
        movq=decoder,
    )


def _latent_diffusion() -> Untyped:
    return diffusers.LDMTextToImagePipeline(
        vqvae=tiny_vae((4, 4, 4, 4), latent_channels=4),
        bert=transformers.CLIPTextModel(tiny_clip(77)),
        tokenizer=clip_tokenizer(),
        unet=tiny_unet(WIDE),
        scheduler=ddim(),
    )


def _dreamlite() -> Untyped:
    unet = diffusers.DreamLiteUNetModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=(
            "DreamLiteCrossAttnNoSelfAttnDownBlock2D",
            "DreamLiteCrossAttnDownBlock2D",
        ),
        up_block_types=("DreamLiteCrossAttnUpBlock2D", "DreamLiteUpBlock2D"),
        block_out_channels=(16, 32),
        cross_attention_dim=WIDE,
        attention_head_dim=8,
        layers_per_block=1,
        norm_num_groups=8,
        transformer_layers_per_block=1,
    )
    vae = diffusers.AutoencoderTiny(
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
        latent_channels=4,
    )
    return diffusers.DreamLitePipeline(
        text_encoder=qwen3(),
        tokenizer=seeing_words(),
        processor=processor("3"),
        vae=vae,
        unet=unet,
        scheduler=flow(),
    )


def _stable_unclip() -> Untyped:
    squared = {"beta_schedule": "squaredcos_cap_v2"}
    return diffusers.StableUnCLIPPipeline(
        prior_tokenizer=clip_tokenizer(),
        prior_text_encoder=transformers.CLIPTextModelWithProjection(tiny_clip()),
        prior=diffusers.PriorTransformer(
            num_attention_heads=2,
            attention_head_dim=8,
            embedding_dim=WIDE,
            num_layers=1,
            num_embeddings=24,
        ),
        prior_scheduler=diffusers.DDPMScheduler(
            variance_type="fixed_small_log", prediction_type="sample", **squared
        ),
        image_normalizer=StableUnCLIPImageNormalizer(embedding_dim=WIDE),
        image_noising_scheduler=diffusers.DDPMScheduler(**squared),
        tokenizer=clip_tokenizer(),
        text_encoder=transformers.CLIPTextModel(tiny_clip()),
        unet=tiny_unet(
            WIDE,
            class_embed_type="projection",
            projection_class_embeddings_input_dim=2 * WIDE,
        ),
        scheduler=ddim(),
        vae=tiny_vae(latent_channels=4),
    )


def _ldm3d() -> Untyped:
    """Its decoder gives the depth beside the colors."""
    vae = tiny_vae(latent_channels=4, in_channels=6, out_channels=6)
    return sharing("StableDiffusionLDM3DPipeline", models.pipe("sd"), vae=vae)


MAKE: dict[str, Callable[[], Untyped]] = {
    "kolors": _kolors,
    "kandinsky3": _kandinsky3,
    "latent-diffusion": _latent_diffusion,
    "dreamlite": _dreamlite,
    "stable-unclip": _stable_unclip,
    "ldm3d": _ldm3d,
    "PixArtSigmaPAGPipeline": lambda: _two_blocks(
        "PixArtSigmaPAGPipeline", families.pipe("pixart-sigma")
    ),
    "StableDiffusion3PAGPipeline": lambda: _two_blocks(
        "StableDiffusion3PAGPipeline", models.pipe("sd3")
    ),
}
# Classes that run the components of another one.
SHARING: dict[str, Callable[[], Untyped]] = {
    "DreamLiteMobilePipeline": _dreamlite,
    "Flux2KleinKVPipeline": lambda: families.pipe("klein"),
    "FluxKontextPipeline": lambda: models.pipe("flux"),
    "HunyuanDiTPAGPipeline": lambda: plain.pipe("hunyuan-dit"),
    "KolorsPAGPipeline": _kolors,
    "SanaPAGPipeline": lambda: families.pipe("sana"),
    "SemanticStableDiffusionPipeline": lambda: models.pipe("sd"),
    "StableDiffusionModelEditingPipeline": lambda: models.pipe("sd"),
    "StableDiffusionPAGPipeline": lambda: models.pipe("sd"),
    "StableDiffusionPanoramaPipeline": lambda: models.pipe("sd"),
    "StableDiffusionPipelineSafe": lambda: models.pipe("sd"),
    "StableDiffusionSAGPipeline": lambda: models.pipe("sd"),
    "StableDiffusionXLPAGPipeline": lambda: models.pipe("sdxl"),
}
MAKE |= {name: partial(_shared, name, make) for name, make in SHARING.items()}
