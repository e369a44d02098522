"""A tiny Stable Diffusion model as one file, with the names of tensors of the original release."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests import models

Weights = Mapping[str, torch.Tensor]
RESNET_NAMES = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
UNET_ENDS = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
    "mid_block.resnets.0": "middle_block.0",
    "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
}
VAE_NAMES = {
    "conv_shortcut": "nin_shortcut",
    "conv_norm_out": "norm_out",
    "mid_block.resnets.0": "mid.block_1",
    "mid_block.resnets.1": "mid.block_2",
    "mid_block.attentions.0": "mid.attn_1",
    "attn_1.group_norm": "attn_1.norm",
    "attn_1.to_q": "attn_1.q",
    "attn_1.to_k": "attn_1.k",
    "attn_1.to_v": "attn_1.v",
    "attn_1.to_out.0": "attn_1.proj_out",
}


def write_checkpoint(path: Path) -> Path:
    """The weights of the tiny model `sd` as one file in the original layout."""
    pipe = models.pipe("sd")
    tensors: dict[str, torch.Tensor] = {}
    tensors |= _with_prefix("model.diffusion_model.", _unet_tensors(pipe.unet))
    tensors |= _with_prefix("first_stage_model.", _vae_tensors(pipe.vae.state_dict()))
    text = pipe.text_encoder.state_dict()
    prefix = "cond_stage_model.transformer."
    prefix += "" if any(name.startswith("text_model.") for name in text) else "text_model."
    tensors |= _with_prefix(prefix, text.items())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def _with_prefix(prefix: str, tensors: Iterator[tuple[str, torch.Tensor]]) -> Weights:
    return {prefix + name: tensor for name, tensor in tensors}


def _unet_tensors(unet: models.Untyped) -> Iterator[tuple[str, torch.Tensor]]:
    layers = unet.config.layers_per_block
    attends = [name.startswith("CrossAttn") for name in unet.config.up_block_types]
    for name, tensor in unet.state_dict().items():
        original = _unet_name(name, layers, attends)
        if ".resnets." in name:
            for part, its_name in RESNET_NAMES.items():
                original = original.replace(f".{part}.", f".{its_name}.")
        yield original, tensor


def _unet_name(name: str, layers: int, attends: list[bool]) -> str:
    for start, its_name in UNET_ENDS.items():
        if name.startswith(f"{start}."):
            return its_name + name.removeprefix(start)
    match = re.fullmatch(r"(down|up)_blocks\.(\d+)\.(\w+)\.(\d+)\.(.*)", name)
    assert match is not None, name
    way, block, kind, layer, rest = match[1], int(match[2]), match[3], int(match[4]), match[5]
    slot = 1 if kind == "attentions" else 0
    if way == "up":
        index = block * (layers + 1) + (layers if kind == "upsamplers" else layer)
        slot = 1 + attends[block] if kind == "upsamplers" else slot
        return f"output_blocks.{index}.{slot}.{rest}"
    if kind == "downsamplers":
        return f"input_blocks.{(block + 1) * (layers + 1)}.0.op.{rest.removeprefix('conv.')}"
    return f"input_blocks.{block * (layers + 1) + layer + 1}.{slot}.{rest}"


def _vae_tensors(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    blocks = len({name.split(".")[2] for name in weights if name.startswith("decoder.up_blocks.")})
    for name, tensor in weights.items():
        original = re.sub(r"down_blocks\.(\d+)\.resnets\.", r"down.\1.block.", name)
        original = re.sub(
            r"down_blocks\.(\d+)\.downsamplers\.0\.", r"down.\1.downsample.", original
        )
        match = re.match(r"decoder\.up_blocks\.(\d+)\.", original)
        if match is not None:
            number = blocks - 1 - int(match[1])
            original = original.replace(match[0], f"decoder.up.{number}.")
            original = original.replace(".resnets.", ".block.").replace(
                ".upsamplers.0.", ".upsample."
            )
        for part, its_name in VAE_NAMES.items():
            original = original.replace(part, its_name)
        is_projection = ".attn_1." in original and tensor.ndim == 2
        yield original, tensor[:, :, None, None] if is_projection else tensor
