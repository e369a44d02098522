"""The tensors of a LoRA, each layer with its own scale multiplied in.

A file states the scale of a layer as an alpha, which is divided by the layer's rank, in a tensor of
its own or in the metadata that diffusers writes. diffusers hands alphas on by names that match no
layer in some families, so none is left for it to read: https://github.com/huggingface/diffusers,
loaders/peft.py and utils/peft_utils.py, `get_peft_kwargs`.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open

from imagekiln.steps.errors import cut_name

Config: TypeAlias = dict[str, Any]  # of peft, by the name of the component before each key
Tensors = dict[str, torch.Tensor]
CONFIG_METADATA = "lora_adapter_metadata"
# `to_q.lora_A.weight`, `to_q.lora_down.weight`, `to_q.lora.down.weight`, `to_q_lora.down.weight`,
# `fc1.lora_linear_layer.down.weight`, `qkv_lora1.down.weight`.
FACTOR = re.compile(
    r"(?P<module>.+)[._]lora(?:_linear_layer)?\d*[._](?P<side>A|B|down|up)"
    r"(?:\.default)?\.(?:weight|bias)"
)
# diffusers reads these names only if each layer has an alpha. Its rank is the scale 1.
NEEDS_ALPHA = "lora_transformer_"
# What diffusers leaves out of a LoRA of Z-Image that holds it in three parts too.
REDUNDANT = re.compile(r"attention[._](?:qkv|out)[._]lora")
MAX_LISTED = 3


def read_scaled_tensors(path: Path) -> Tensors:
    """The tensors of a LoRA's file in float32, for which the scale of each layer is 1."""
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        tensors = {name: file.get_tensor(name).float() for name in names}
        configs = json.loads((file.metadata() or {}).get(CONFIG_METADATA, "{}"))
    ranks: dict[str, int] = {}
    for name in tensors:
        match = FACTOR.fullmatch(name)
        if match is None or match["side"] not in ("B", "up"):
            continue
        rank = tensors[re.sub("bias$", "weight", name)].shape[1]
        alpha = tensors.get(f"{match['module']}.alpha")
        scale = _configured_scale(configs, match["module"], rank)
        tensors[name] *= scale if alpha is None else alpha.item() / rank
        ranks[f"{match['module']}.alpha"] = rank
    kept = {name: tensor for name, tensor in tensors.items() if name not in ranks}
    needed = {name: rank for name, rank in ranks.items() if name.startswith(NEEDS_ALPHA)}
    return kept | {name: torch.tensor(float(rank)) for name, rank in needed.items()}


def require_all_converted(tensors: Tensors, converted: Tensors) -> None:
    """Raise ValueError if diffusers' names for a LoRA's tensors leave some of its layers out.

    A layer that is split keeps the beginning of its first factor, whatever its name.
    """
    known = {_beginning(tensor) for tensor in converted.values()}
    lost = [
        match["module"]
        for name in tensors
        if (match := FACTOR.fullmatch(name))
        and match["side"] in ("A", "down")
        and _beginning(tensors[name]) not in known
        and REDUNDANT.search(name) is None
    ]
    if lost:
        raise ValueError(f"the model has no layer for {list_names(lost)}")


def _beginning(tensor: torch.Tensor) -> tuple[float, ...]:
    return tuple(tensor.flatten()[:8].tolist())


def list_names(names: list[str]) -> str:
    """The first of some names of tensors or layers, and how many more there are."""
    listed = ", ".join(cut_name(name) for name in sorted(names)[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{listed} and {more} more" if more > 0 else listed


def _configured_scale(configs: Config, module: str, rank: int) -> float:
    """The scale by the metadata of diffusers; 1 for a file that has none."""
    component, _, name = module.partition(".")
    prefix = f"{component}."
    config = {
        key.removeprefix(prefix): value for key, value in configs.items() if key.startswith(prefix)
    }
    if config.get("lora_alpha") is None:
        return 1.0
    alpha = config["lora_alpha"]
    for pattern, its_alpha in (config.get("alpha_pattern") or {}).items():
        if f".{name}".endswith(f".{pattern.lstrip('^')}"):
            alpha = its_alpha
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
