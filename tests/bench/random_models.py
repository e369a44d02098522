"""Pipelines of common shapes with random weights: as fast as the real ones, without downloads.

    python tests/bench/random_models.py sdxl /tmp/sdxl        # 7 GB; flux: 34 GB; sd15: 2 GB

The shapes are those of the models' own config files. Models named `tiny-...` have the same classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
import diffusers
import torch
import transformers

from imagekiln.steps.storage.uri import BUNDLED_FOLDER

Untyped: TypeAlias = Any  # diffusers and transformers have no types to speak of
DTYPE = torch.bfloat16
CLIP_TOKENS, T5_TOKENS = 77, 512


@dataclass(frozen=True, slots=True)
class Settings:
    """Default settings of a model: pixels per side, steps, guidance, and images in a batch."""

    side: int
    steps: int
    guidance: float
    batch: int


SETTINGS = {
    "shapes": Settings(64, 20, 3.0, 8),
    "sd15": Settings(512, 50, 7.5, 8),
    "sdxl": Settings(1024, 30, 5.0, 8),
    "flux": Settings(1024, 28, 3.5, 2),
    "tiny-sd15": Settings(32, 2, 7.5, 4),
    "tiny-sdxl": Settings(32, 2, 5.0, 4),
    "tiny-flux": Settings(32, 2, 3.5, 2),
}
NAMES = tuple(SETTINGS)


def local(name: str, folder: Path) -> str:
    """The model as a job names it, written into `folder` if it is not there yet."""
    if name == "shapes":
        return "bundled:shapes"
    target = folder / name
    if not (target / "model_index.json").exists():
        write(name, target)
    return str(target)


def write(name: str, target: Path) -> None:
    """Write a pipeline into a folder, the same every time on one device."""
    torch.manual_seed(7)
    if name.startswith("tiny-"):
        _tiny_pipeline(name).save_pretrained(target)
        return
    with torch.device("meta"):
        components = MAKE[name]()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for model in components.values():
        fill(model, device, DTYPE)
        model.to("cpu")
    pipe = KINDS[name](**components, **_rest(name))
    pipe.save_pretrained(target)


def parameters(name: str) -> int:
    """The number of weights in the denoiser."""
    return sum(weights.numel() for weights in empty_component(name, "denoiser").parameters())


def empty_component(name: str, part: Literal["denoiser", "vae"]) -> Untyped:
    """A network of a model in eval mode: its shapes alone, without memory for weights."""
    if name.startswith("tiny-"):
        components = _tiny_pipeline(name).components
    else:
        with torch.device("meta"):
            components = MAKE[name]()
    if part == "vae":
        network = components["vae"]
    else:
        network = components.get("unet") or components["transformer"]
    return network.to("meta").eval()


def _tiny_pipeline(name: str) -> Untyped:
    from tests.models import BUILD  # limits torch to one thread

    kinds = {"tiny-sd15": "sd", "tiny-sdxl": "sdxl", "tiny-flux": "flux"}
    return BUILD[kinds[name]]()


def fill(model: Untyped, device: str, dtype: torch.dtype) -> None:
    """Give weights on a device values that keep what they multiply about as large as it is."""
    model.to(dtype).to_empty(device=device)
    for name, weights in model.state_dict().items():
        if weights.ndim > 1:
            weights.normal_(std=(weights.shape[0] / weights.numel()) ** 0.5)
        else:
            weights.fill_(0.0 if name.endswith("bias") else 1.0)
    if hasattr(model, "tie_weights"):
        model.tie_weights()


def _rest(name: str) -> dict[str, Untyped]:
    """What has no weights: tokenizers, of few words, and the scheduler."""
    if name == "flux":
        shift = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15, "shift": 3.0}
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**shift)
        return {
            "tokenizer": _tokenizer(CLIP_TOKENS),
            "tokenizer_2": _tokenizer(T5_TOKENS),
            "scheduler": scheduler,
        }
    plain = {"tokenizer": _tokenizer(CLIP_TOKENS), "scheduler": euler_scheduler()}
    if name == "sdxl":
        return plain | {"tokenizer_2": _tokenizer(CLIP_TOKENS)}
    return plain | {
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }


def euler_scheduler() -> Untyped:
    """The scheduler of SD 1.5 and SDXL."""
    return diffusers.EulerDiscreteScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        steps_offset=1,
        timestep_spacing="leading",
    )


def _tokenizer(tokens: int) -> Untyped:
    tokenizer = transformers.CLIPTokenizer.from_pretrained(BUNDLED_FOLDER / "shapes" / "tokenizer")
    tokenizer.model_max_length = tokens
    return tokenizer


def _sd15() -> dict[str, Untyped]:
    return {
        "unet": diffusers.UNet2DConditionModel(
            sample_size=64,
            block_out_channels=(320, 640, 1280, 1280),
            cross_attention_dim=768,
            attention_head_dim=8,
        ),
        "vae": _vae(latent_channels=4, sample_size=512, scaling_factor=0.18215),
        "text_encoder": transformers.CLIPTextModel(_clip_l()),
    }


def _sdxl() -> dict[str, Untyped]:
    return {
        "unet": diffusers.UNet2DConditionModel(
            sample_size=128,
            block_out_channels=(320, 640, 1280),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            transformer_layers_per_block=[1, 2, 10],
            attention_head_dim=[5, 10, 20],
            cross_attention_dim=2048,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816,
        ),
        "vae": _vae(latent_channels=4, sample_size=1024, scaling_factor=0.13025),
        "text_encoder": transformers.CLIPTextModel(_clip_l()),
        "text_encoder_2": transformers.CLIPTextModelWithProjection(
            _clip(
                hidden_size=1280,
                intermediate_size=5120,
                num_hidden_layers=32,
                num_attention_heads=20,
                projection_dim=1280,
                hidden_act="gelu",
            )
        ),
    }  # fmt: skip


def _flux() -> dict[str, Untyped]:
    t5 = transformers.T5Config(
        vocab_size=32128, d_model=4096, d_ff=10240, d_kv=64, num_layers=24, num_heads=64,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    return {
        # The defaults of the class are FLUX.1's.
        "transformer": diffusers.FluxTransformer2DModel(guidance_embeds=True),
        "vae": _vae(
            latent_channels=16, sample_size=1024, scaling_factor=0.3611, shift_factor=0.1159,
            use_quant_conv=False, use_post_quant_conv=False,
        ),
        "text_encoder": transformers.CLIPTextModel(_clip_l()),
        "text_encoder_2": transformers.T5EncoderModel(t5),
    }  # fmt: skip


def _vae(**more: object) -> Untyped:
    return diffusers.AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        **more,
    )


def _clip_l() -> Untyped:
    return _clip(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        projection_dim=768,
    )


def _clip(**more: object) -> Untyped:
    words = {"bos_token_id": 624, "eos_token_id": 625, "pad_token_id": 625}  # the tokenizer's
    return transformers.CLIPTextConfig(
        vocab_size=49408, max_position_embeddings=CLIP_TOKENS, **words, **more
    )


MAKE: dict[str, Callable[[], dict[str, Untyped]]] = {"sd15": _sd15, "sdxl": _sdxl, "flux": _flux}
KINDS = {
    "sd15": diffusers.StableDiffusionPipeline,
    "sdxl": diffusers.StableDiffusionXLPipeline,
    "flux": diffusers.FluxPipeline,
}


@click.command()
@click.argument("name", type=click.Choice(NAMES[1:]))
@click.argument("target", type=click.Path(path_type=Path))
def main(name: str, target: Path) -> None:
    """Write a pipeline with random weights into a folder."""
    write(name, target)


if __name__ == "__main__":
    main()
