"""Networks of a model alone, on the device, with random weights and inputs, and their FLOP."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.bench import random_models

Untyped: TypeAlias = Any  # diffusers has no types to speak of
Inputs = dict[str, Untyped]
CLIP_TOKENS = 77
T5_TOKENS = 512
TIME_IDS = 6
TIMESTEP = 981.0
GUIDANCE = 3.5
POSITION_AXES = 3  # of a token in Flux: text or image, row, column


@dataclass(frozen=True, slots=True)
class Network:
    """A network and the inputs of a call: `rows` at once, which take `flops` operations."""

    module: Untyped
    inputs: Inputs
    rows: int
    flops: float

    def call(self) -> Untyped:
        """Call it once."""
        with torch.no_grad():
            return self.module(**self.inputs)[0]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a network runs, and in which dtype."""

    device: str
    dtype: torch.dtype

    def random(self, *shape: int) -> torch.Tensor:
        """Normally distributed numbers."""
        return torch.randn(
            shape,
            device=self.device,
            dtype=self.dtype,
        )

    def zeros(self, *shape: int) -> torch.Tensor:
        """Zeros."""
        return torch.zeros(*shape, device=self.device, dtype=self.dtype)


def make_denoiser(model: str, side: int, rows: int, place: Placement) -> Network:
    """A model's denoiser, and inputs for images of side x side pixels."""
    module = filled_network(model, "denoiser", place)
    if is_unet(module):
        module.to(memory_format=torch.channels_last)
    latent_side = side // vae_factor(model)
    inputs = denoiser_inputs(module, rows, latent_side, place)
    flops = denoiser_flops(model, side, rows)
    return Network(module, inputs, rows, flops)


def denoiser_flops(model: str, side: int, rows: int) -> float:
    """Operations of one call of a model's denoiser for this many rows."""
    empty = random_models.empty_component(model, "denoiser")
    latent_side = side // vae_factor(model)
    inputs = denoiser_inputs(empty, rows, latent_side, META)
    return count_flops(empty, inputs)


def is_unet(denoiser: Untyped) -> bool:
    """Whether a denoiser is a UNet. Of the models here, only these guide by a second row."""
    return hasattr(denoiser.config, "down_block_types")


def denoiser_inputs(denoiser: Untyped, rows: int, side: int, place: Placement) -> Inputs:
    """Inputs of a denoiser for latents of side x side."""
    make_inputs = unet_inputs if is_unet(denoiser) else transformer_inputs
    return make_inputs(denoiser, rows, side, place)


def unet_inputs(unet: Untyped, rows: int, side: int, place: Placement) -> Inputs:
    """Inputs of a UNet for latents of side x side."""
    config = unet.config
    inputs: Inputs = {
        "sample": place.random(rows, config.in_channels, side, side),
        "timestep": torch.tensor(TIMESTEP, device=place.device),
        "encoder_hidden_states": place.random(rows, CLIP_TOKENS, config.cross_attention_dim),
        "return_dict": False,
    }
    if config.addition_embed_type == "text_time":
        ids = TIME_IDS * config.addition_time_embed_dim
        pooled = config.projection_class_embeddings_input_dim - ids
        inputs["added_cond_kwargs"] = {
            "text_embeds": place.random(rows, pooled),
            "time_ids": place.random(rows, TIME_IDS),
        }
    return inputs


def transformer_inputs(transformer: Untyped, rows: int, side: int, place: Placement) -> Inputs:
    """Inputs of Flux's transformer for latents of side x side, four of which are a token."""
    config = transformer.config
    tokens = (side // 2) ** 2
    inputs: Inputs = {
        "hidden_states": place.random(rows, tokens, config.in_channels),
        "timestep": torch.rand(rows, device=place.device, dtype=place.dtype),
        "pooled_projections": place.random(rows, config.pooled_projection_dim),
        "encoder_hidden_states": place.random(rows, T5_TOKENS, config.joint_attention_dim),
        "txt_ids": place.zeros(T5_TOKENS, POSITION_AXES),
        "img_ids": place.zeros(tokens, POSITION_AXES),
        "return_dict": False,
    }
    if config.guidance_embeds:
        inputs["guidance"] = torch.full((rows,), GUIDANCE, device=place.device)
    return inputs


def make_vae(model: str, place: Placement) -> Untyped:
    """A model's VAE."""
    return filled_network(model, "vae", place)


def vae_latents(vae: Untyped, side: int, images: int, place: Placement) -> torch.Tensor:
    """Latents of this many images of side x side pixels."""
    channels = vae.config.latent_channels
    latent_side = side // _factor(vae)
    return place.random(images, channels, latent_side, latent_side)


def decode_flops(model: str, side: int) -> float:
    """Operations of decoding one image."""
    vae = random_models.empty_component(model, "vae")
    latents = vae_latents(vae, side, images=1, place=META)
    inputs = {"z": latents, "return_dict": False}
    return count_flops(vae.decode, inputs)


def count_flops(function: Callable[..., object], inputs: Inputs) -> float:
    """Operations of one call. A module on `meta` computes nothing, and is counted all the same."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function(**inputs)
    return float(counter.get_total_flops())


def filled_network(model: str, part: Untyped, place: Placement) -> Untyped:
    """A network with random weights on the device."""
    network = random_models.empty_component(model, part)
    random_models.fill(network, place.device, place.dtype)
    return network


def vae_factor(model: str) -> int:
    """Pixels on a side for each latent."""
    vae = random_models.empty_component(model, "vae")
    return _factor(vae)


def _factor(vae: Untyped) -> int:
    blocks = vae.config.block_out_channels
    halvings = len(blocks) - 1
    return 1 << halvings


META = Placement("meta", torch.float32)
