"""Tiny ControlNets and IP-Adapters with random weights, for the tiny models of `tests.models`."""

from functools import cache
from pathlib import Path
from typing import Literal

import diffusers
import numpy as np
import safetensors.torch
import torch
import transformers
from diffusers.models.attention_processor import SD3IPAdapterJointAttnProcessor2_0
from diffusers.models.embeddings import IPAdapterTimeImageProjection

from imagekiln.steps.imaging.input_images import open_input_image
from imagekiln.steps.runs.image import ImageRow
from tests import models
from tests.models import WIDE, Untyped, pipe
from tests.pictures import noise

Kind = Literal["sd", "sdxl"]
Transformer = Literal["flux", "sd3"]
Controlled = Literal["sd", "sdxl", "sd3", "flux"]
Model = Literal["sd", "sdxl", "sd3", "flux", "flux-of-8"]
TOKENS = 4  # per picture
CONTROLNETS = {"flux": diffusers.FluxControlNetModel, "sd3": diffusers.SD3ControlNetModel}
ENCODER_SIDE = 16  # pixels of the image encoder's input


@cache
def controlnet(kind: Controlled) -> Path:
    """A saved ControlNet."""
    if kind in CONTROLNETS:
        return saved_controlnet(new_controlnet(kind))
    network = diffusers.ControlNetModel.from_unet(
        pipe(kind).unet, conditioning_embedding_out_channels=(8, 16)
    )
    return saved_controlnet(network)


def new_controlnet(kind: Controlled, **changes: object) -> Untyped:
    """A ControlNet configured like the transformer of a tiny model, with changes."""
    return CONTROLNETS[kind].from_config({**pipe(kind).transformer.config, **changes})


@cache
def model(kind: Model) -> Path:
    """A saved model that takes ControlNets. The VAE of `flux-of-8` has factor 8, as in FLUX.1."""
    if kind == "sd3":
        return models.saved(kind, _deeper_sd3)
    if kind == "flux-of-8":
        return models.saved(kind, _flux_of_8)
    return models.folder(kind)


def _deeper_sd3() -> Untyped:
    parts = pipe("sd3").components
    config = {**parts["transformer"].config, "num_layers": 2}  # no ControlNet changes the last one
    transformer = diffusers.SD3Transformer2DModel.from_config(config)
    return diffusers.StableDiffusion3Pipeline(**{**parts, "transformer": transformer})


def _flux_of_8() -> Untyped:
    vae = models.tiny_vae((4, 4, 8, 8), latent_channels=4, shift_factor=0.1)
    return diffusers.FluxPipeline(**{**pipe("flux").components, "vae": vae})


def saved_controlnet(network: Untyped) -> Path:
    """Save a network with random weights in every layer: in a new one, the last are zero."""
    torch.manual_seed(5)
    for weights in network.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    folder = models.scratch("controlnet")
    network.save_pretrained(folder)
    return folder


@cache
def ip_adapter(kind: Kind) -> Path:
    """An IP-Adapter's folder, as on model hubs: the weights, and the image encoder's folder."""
    torch.manual_seed(6)
    unet = pipe(kind).unet
    folder = models.scratch(f"ip-adapter-{kind}")
    text_channels = unet.config.cross_attention_dim
    tensors = {
        "image_proj.proj.weight": torch.randn(TOKENS * text_channels, WIDE),
        "image_proj.proj.bias": torch.randn(TOKENS * text_channels),
        "image_proj.norm.weight": torch.ones(text_channels),
        "image_proj.norm.bias": torch.zeros(text_channels),
    }
    crossing = [name for name in unet.attn_processors if name.endswith("attn2.processor")]
    for place, name in enumerate(crossing):
        to_k = unet.get_submodule(name.removesuffix(".processor")).to_k.weight
        for letter in "kv":
            tensors[f"ip_adapter.{2 * place + 1}.to_{letter}_ip.weight"] = torch.randn_like(to_k)
    safetensors.torch.save_file(tensors, folder / "adapter.safetensors")
    save_image_encoder(folder, WIDE)
    return folder


def save_image_encoder(folder: Path, channels: int) -> None:
    """Save an image encoder with this many output channels into an adapter's folder."""
    config = transformers.CLIPVisionConfig(
        hidden_size=WIDE,
        intermediate_size=WIDE,
        projection_dim=channels,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=ENCODER_SIDE,
        patch_size=4,
    )
    transformers.CLIPVisionModelWithProjection(config).save_pretrained(folder / "image_encoder")


@cache
def flux_ip_adapter() -> Path:
    """The same for FLUX.1, with the tensor names of the first such adapters."""
    torch.manual_seed(8)
    network = pipe("flux").transformer
    folder = models.scratch("ip-adapter-flux")
    text_channels = network.config.joint_attention_dim
    channels = network.inner_dim
    tensors = {
        "ip_adapter_proj_model.proj.weight": torch.randn(TOKENS * text_channels, WIDE),
        "ip_adapter_proj_model.proj.bias": torch.randn(TOKENS * text_channels),
        "ip_adapter_proj_model.norm.weight": torch.ones(text_channels),
        "ip_adapter_proj_model.norm.bias": torch.zeros(text_channels),
    }
    for block in range(network.config.num_layers):
        for letter in "kv":
            place = f"double_blocks.{block}.processor.ip_adapter_double_stream_{letter}_proj"
            tensors |= {
                f"{place}.weight": torch.randn(channels, text_channels),
                f"{place}.bias": torch.randn(channels),
            }
    safetensors.torch.save_file(tensors, folder / "adapter.safetensors")
    save_image_encoder(folder, WIDE)
    return folder


@cache
def sd3_ip_adapter() -> Path:
    """The same for Stable Diffusion 3, whose image encoder is a SigLIP model."""
    torch.manual_seed(9)
    network = pipe("sd3").transformer
    folder = models.scratch("ip-adapter-sd3")
    channels = network.config.attention_head_dim * network.config.num_attention_heads
    projection = IPAdapterTimeImageProjection(
        WIDE, channels, hidden_dim=128, heads=2, num_queries=TOKENS, timestep_in_dim=16
    )
    tensors = {f"image_proj.{name}": tensor for name, tensor in projection.state_dict().items()}
    for block in range(len(network.attn_processors)):
        reader = SD3IPAdapterJointAttnProcessor2_0(
            channels, channels, network.config.attention_head_dim, timesteps_emb_dim=128
        )
        torch.nn.init.normal_(reader.to_v_ip.weight)
        tensors |= {
            f"ip_adapter.{block}.{name}": tensor for name, tensor in reader.state_dict().items()
        }
    safetensors.torch.save_file(tensors, folder / "adapter.safetensors")
    config = transformers.SiglipVisionConfig(
        hidden_size=WIDE,
        intermediate_size=WIDE,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=ENCODER_SIDE,
        patch_size=4,
    )
    transformers.SiglipVisionModel(config).save_pretrained(folder / "image_encoder")
    processor = transformers.SiglipImageProcessor(
        size={"height": ENCODER_SIDE, "width": ENCODER_SIDE}
    )
    processor.save_pretrained(folder / "image_encoder")
    return folder


def drawn_by_diffusers(loaded: Untyped, prompt: str, row: ImageRow, guidance: float) -> bytes:
    """The pixels that diffusers itself draws with the loaded IP-Adapter at scale 0.8."""
    loaded.set_ip_adapter_scale(0.8)
    (image,) = loaded(
        prompt,
        ip_adapter_image=open_input_image(noise(0)),
        width=models.SIDE,
        height=models.SIDE,
        num_inference_steps=2,
        guidance_scale=guidance,
        generator=[torch.Generator("cpu").manual_seed(row.parameters.seed)],
    ).images
    return np.asarray(image).tobytes()
