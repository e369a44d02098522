"""Tiny LoRAs with random weights for the pipelines of `tests.families`, saved by diffusers."""

import warnings
from functools import cache
from pathlib import Path

import diffusers
import peft
import torch

from tests import families, models
from tests.models import Untyped

FILE = "pytorch_lora_weights.safetensors"
STRENGTH = 0.3  # of the random weights: visible, without overflow


@cache
def folder(kind: str, seed: int = 0, *, text: bool = False, dropout: float = 0.0) -> Path:
    """A folder with a LoRA for a pipeline, with `text` for its first text encoder too."""
    return saved_for(families.pipe(kind), seed, text=text, dropout=dropout)


def saved_for(pipe: Untyped, seed: int = 0, *, text: bool = False, dropout: float = 0.0) -> Path:
    """A folder with a LoRA for a pipeline, which keeps the LoRA's layers."""
    target = models.scratch("lora")
    random = torch.Generator().manual_seed(seed)
    name = "unet" if hasattr(pipe, "unet") else "transformer"
    layers = {name: (getattr(pipe, name), ["to_q", "to_k", "to_v", "to_out.0"])}
    if text:
        layers["text_encoder"] = (pipe.text_encoder, ["q_proj", "v_proj"])
    saved: dict[str, Untyped] = {}
    for component, (module, targets) in layers.items():
        weights, settings = _random(module, targets, random, dropout)
        saved |= {
            f"{component}_lora_layers": weights,
            f"{component}_lora_adapter_metadata": settings,
        }
    type(pipe).save_lora_weights(target, **saved)
    return target


def _random(
    module: Untyped, targets: list[str], random: torch.Generator, dropout: float
) -> tuple[Untyped, Untyped]:
    module.add_adapter(
        peft.LoraConfig(r=2, lora_alpha=3, lora_dropout=dropout, target_modules=targets)
    )
    weights = peft.get_peft_model_state_dict(module)
    drawn = {
        name: torch.randn(tensor.shape, generator=random) * STRENGTH
        for name, tensor in weights.items()
    }
    return drawn, module.peft_config["default"].to_dict()


def load(pipe: diffusers.DiffusionPipeline, lora: Path, name: str) -> None:
    """Load a LoRA with diffusers' own method."""
    with warnings.catch_warnings(action="ignore"):  # peft warns of a second adapter in a model
        pipe.load_lora_weights(str(lora), weight_name=FILE, adapter_name=name)
