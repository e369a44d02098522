"""The tensors of a LoRA, each layer with its own scale multiplied in.

A file states the scale of a layer as an alpha, which is divided by the layer's rank, in a tensor of
its own or in the metadata that diffusers writes. diffusers hands alphas on by names that match no
layer in some families, so none is left for it to read: https://github.com/huggingface/diffusers,
loaders/peft.py and utils/peft_utils.py, `get_peft_kwargs`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open

from imagekiln.steps.errors import cut_name

Config: TypeAlias = dict[str, Any]  # of peft, by the name of the component before each key
Tensors = dict[str, torch.Tensor]
ALPHA_SUFFIX = ".alpha"
CONFIG_METADATA = "lora_adapter_metadata"
# `to_q.lora_A.weight`, `to_q.lora_down.weight`, `to_q.lora.down.weight`, `to_q_lora.down.weight`,
# `fc1.lora_linear_layer.down.weight`, `qkv_lora1.down.weight`.
FACTOR = re.compile(
    r"(?P<layer>(?P<module>.+)[._]lora(?:_linear_layer)?\d*)[._](?P<side>A|B|down|up)"
    r"(?:\.default)?\.(?P<kind>weight|bias)"
)
LOKR_MARKER = ".lokr_"
# diffusers reads these names only if each layer has an alpha. Its rank is the scale 1.
NEEDS_ALPHA = "lora_transformer_"
ENERGY_TOLERANCE = 3e-5  # sums of float32 in another order
MAX_LISTED = 3


@dataclass(slots=True)
class LoraLayer:
    """The names of the tensors of one layer: the two factors, and the bias of the second."""

    module: str
    down: str = ""
    up: str = ""
    bias: str = ""


def read_scaled_tensors(path: Path) -> Tensors:
    """The tensors of a LoRA's file in float32, for which the scale of each layer is 1.

    Raises ValueError if a scale or a factor belongs to no layer.
    """
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        tensors = {name: file.get_tensor(name).float() for name in names}
        configs = json.loads((file.metadata() or {}).get(CONFIG_METADATA, "{}"))
    for layer in _lora_layers(tensors):
        rank = tensors[layer.down].shape[0]
        alpha = tensors.pop(layer.module + ALPHA_SUFFIX, None)
        scale = _configured_scale(configs, layer.module, rank)
        if alpha is not None:
            scale = alpha.item() / rank
        if layer.module.startswith(NEEDS_ALPHA):
            tensors[layer.module + ALPHA_SUFFIX] = torch.tensor(float(rank))
        for name in filter(None, (layer.up, layer.bias)):
            tensors[name] *= scale
    _require_no_lone_alpha(tensors)
    return tensors


def require_all_converted(tensors: Tensors, converted: Tensors) -> None:
    """Raise ValueError if diffusers' names for a LoRA's tensors leave some of its layers out.

    The squares of all that layers add are summed, which neither other names nor a layer that
    is split by rows change.
    """
    before = _layer_energies(tensors)
    after = _layer_energies(converted)
    totals = [sum(energy for _, energy in layers.values()) for layers in (before, after)]
    if math.isclose(*totals, rel_tol=ENERGY_TOLERANCE, abs_tol=1e-30):
        return
    # A layer that is split keeps its first factor.
    kept = [down for down, _ in after.values()]
    lost = [module for module, (down, _) in before.items() if not _take(down, kept)]
    raise ValueError(f"the model has no layer for {list_names(lost or [*before])}")


def _take(energy: float, others: list[float]) -> bool:
    """Remove an equal energy from the others; whether there was one."""
    for place, other in enumerate(others):
        if math.isclose(energy, other, rel_tol=ENERGY_TOLERANCE):
            del others[place]
            return True
    return False


def list_names(names: list[str]) -> str:
    """The first of some names of tensors or layers, and how many more there are."""
    listed = ", ".join(cut_name(name) for name in sorted(names)[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{listed} and {more} more" if more > 0 else listed


def _lora_layers(tensors: Mapping[str, torch.Tensor]) -> Iterator[LoraLayer]:
    layers: dict[str, LoraLayer] = {}
    for name in tensors:
        match = FACTOR.fullmatch(name)
        if match is None:
            continue
        layer = layers.setdefault(match["layer"], LoraLayer(match["module"]))
        if match["kind"] == "bias":
            layer.bias = name
        elif match["side"] in ("A", "down"):
            layer.down = name
        else:
            layer.up = name
    for layer in layers.values():
        if not layer.down or not layer.up:
            raise ValueError(f"{cut_name(layer.module)} has one of its two factors")
        yield layer


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


def _require_no_lone_alpha(tensors: Tensors) -> None:
    if any(LOKR_MARKER in name for name in tensors):
        return  # its alphas are multiplied in as diffusers renames it
    alphas = [name for name in tensors if name.endswith(ALPHA_SUFFIX)]
    alone = [name for name in alphas if not name.startswith(NEEDS_ALPHA)]
    if alone:
        raise ValueError(f"it has no layer for {list_names(alone)}")


def _layer_energies(tensors: Tensors) -> dict[str, tuple[float, float]]:
    """The sums of squares of each layer's first factor, and of what it adds to its weights."""
    energies = {}
    for layer in _lora_layers(tensors):
        down = tensors[layer.down].flatten(1)
        up = tensors[layer.up].flatten(1)
        grams = (up.T @ up).double(), (down @ down.T).double()
        products = grams[0] * grams[1]
        energies[layer.module] = (float(grams[1].trace()), float(products.sum()))
    return energies
