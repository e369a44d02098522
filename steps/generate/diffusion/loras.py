"""LoRAs of a pipeline: fused if all rows share them, else activated for the rows that use them.

Only shared LoRAs are fused, since unfusing does not restore the exact weights.
"""

import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import diffusers
import torch
from diffusers.utils import set_adapter_layers, set_weights_and_activate_adapters
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import safe_open

from imagekiln.steps.errors import BadInput, KilnError, explained_by
from imagekiln.steps.generate.diffusion.device import explain_device, explained
from imagekiln.steps.generate.diffusion.loading import list_names, lost_names
from imagekiln.steps.generate.diffusion.patches import (
    Untyped,
    lora_components,
    lora_scales_to_tensors,
    set_own_scales,
)
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.models.checkpoints import file_kind
from imagekiln.steps.models.loras import LoraFacts, fetch_planned_lora, format_loras, lora_weights
from imagekiln.steps.models.weights import tensor_names
from imagekiln.steps.storage.failures import error_reason

Config: TypeAlias = dict[str, Any]  # peft's configuration; each key begins with its component
Tensors = dict[str, torch.Tensor]
CONFIG_METADATA = "lora_adapter_metadata"
# `to_q.lora_A.weight`, `to_q.lora_down.weight`, `to_q.lora.down.weight`, `to_q_lora.down.weight`,
# `fc1.lora_linear_layer.down.weight`, `qkv_lora1.down.weight`.
FACTOR = re.compile(
    r"(?P<module>.+)[._]lora(?:_linear_layer)?\d*[._](?P<side>A|B|down|up)"
    r"(?:\.default)?\.(?:weight|bias)"
)
# diffusers reads these names only if each layer has an alpha. An alpha of the rank is the scale 1.
NEEDS_ALPHA = "lora_transformer_"
# diffusers ignores these in a LoRA of Z-Image that has them split in three as well.
REDUNDANT = re.compile(r"attention[._](?:qkv|out)[._]lora")


class LoraLayers:
    """The LoRAs of one pipeline.

    Text encoders and other components may have different ones active, so prompts can be prefetched.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        settings: Mapping[str, LoraSettings],
        planned: Mapping[str, LoraFacts],
    ) -> None:
        """Take a loaded pipeline, and the job's and the plan's LoRAs by name. Loads none yet."""
        self._pipe = pipe
        self._settings = settings
        self._digests = {name: facts.sha256 for name, facts in planned.items()}
        self._adapters: dict[str, str] = {}  # peft's name of each LoRA that is loaded
        self._active: dict[bool, str | None] = {}  # by whether in the text encoders

    def load(self, names: Iterable[str]) -> None:
        """Load those of the named LoRAs that are not loaded yet."""
        for name in sorted(set(names) - self._adapters.keys()):
            self._load_lora(name)

    def activate(self, loras: str | None, *, texts: bool) -> str | None:
        """Activate exactly these LoRAs in the text encoders, or in all other components.

        Loads missing LoRAs. Returns those that change a layer there. Both are in canonical form.
        """
        weights = lora_weights(loras)
        self.load(weights)
        components = [
            component
            for name, component in lora_components(self._pipe).items()
            if name.startswith("text_encoder") is texts
        ]
        adapters = {
            adapter for component in components for adapter in getattr(component, "peft_config", ())
        }
        effective = {
            name: weight for name, weight in weights.items() if self._adapters[name] in adapters
        }
        text = format_loras(effective)
        if self._active.get(texts, "") != text:
            self._active.pop(texts, None)  # unknown until all components are done
            for component in components:
                self._activate_component(component, effective)
            self._active[texts] = text
        return text

    def _activate_component(self, component: torch.nn.Module, weights: Mapping[str, float]) -> None:
        adapters = getattr(component, "peft_config", {})
        # Float sums depend on their order, which must not follow the user's names.
        ordered = sorted(weights, key=lambda name: (self._digests[name], weights[name]))
        active = [name for name in ordered if self._adapters[name] in adapters]
        if active:
            set_weights_and_activate_adapters(
                component,
                [self._adapters[name] for name in active],
                [weights[name] for name in active],
            )
            lora_scales_to_tensors(component)
        set_adapter_layers(component, enabled=bool(active))
        component.requires_grad_(False)

    def _load_lora(self, name: str) -> None:
        settings = self._settings[name]
        path = fetch_planned_lora(name, settings, self._digests[name])
        # The user's name may clash with an attribute of PyTorch.
        adapter = f"adapter_{len(self._adapters)}"
        explain = partial(_explain_misfit, f"model.loras.{name}", path)
        with explained_by(explain):
            self._load_layers(path, adapter)
        for component in lora_components(self._pipe).values():
            component.eval()  # new layers are in train mode, where dropout is random
        self._adapters[name] = adapter
        self._active.clear()  # loading a LoRA activates it

    def _load_layers(self, path: Path, adapter: str) -> None:
        tensors = _read_scaled_tensors(path)
        with warnings.catch_warnings(action="ignore"):  # peft warns of a model's second adapter
            self._pipe.load_lora_weights(dict(tensors), adapter_name=adapter)
        components = lora_components(self._pipe).values()
        _require_all_layers(tensors, components, adapter)
        for component in components:
            set_own_scales(component, adapter)


def fuse_loras(
    pipe: diffusers.DiffusionPipeline,
    settings: Mapping[str, LoraSettings],
    planned: Mapping[str, LoraFacts],
    loras: str,
    device: torch.device | None = None,
) -> None:
    """Fuse LoRAs, given in canonical form, into a pipeline's weights, added on `device`."""
    layers = LoraLayers(pipe, settings, planned)
    for texts in (True, False):
        layers.activate(loras, texts=texts)
    with explained(
        "defaults.loras",
        f"defaults.loras is {loras}, which cannot be added to the model's weights",
        "Choose other LoRAs or weights, or write them in a column loras.",
    ):
        for component in lora_components(pipe).values():
            for layer in component.modules():
                if isinstance(layer, BaseTunerLayer):
                    _merge(layer, device)
        pipe.unload_lora_weights()


def _merge(layer: Untyped, device: torch.device | None) -> None:
    """Merge the active LoRAs into a layer. Raises ValueError if the sum is not finite."""
    base = layer.get_base_layer()
    dtype = base.weight.dtype
    home = base.weight.device
    layer.to(device, torch.float32)  # so that the sum is rounded once, and not each LoRA before it
    layer.merge()
    base.to(dtype)
    if not base.weight.isfinite().all():
        raise ValueError("a sum is not finite")
    layer.to(home)


def _explain_misfit(setting: str, path: Path, error: Exception) -> KilnError:
    """Convert an error that the libraries raised about a user's file."""
    if isinstance(error, KeyError) and isinstance(error.__context__, Exception):
        error = error.__context__  # diffusers' own clean-up failed after the real error
    kind = file_kind(tensor_names(path, setting))
    return explain_device(setting, error) or BadInput(
        f"{setting}: is {kind} that does not fit the model ({error_reason(error)}). "
        "Choose another LoRA, or another model."
    )


def _read_scaled_tensors(path: Path) -> Tensors:
    """Read a LoRA in float32, with each layer's scale multiplied in.

    Files state the scale as alpha / rank, with alpha in a tensor or in diffusers' metadata. For
    some families diffusers passes alphas by names that match no layer, so none is left to it:
    loaders/peft.py, utils/peft_utils.py, `get_peft_kwargs`.
    """
    tensors: Tensors = {}
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118  # it is no mapping
            tensors[name] = file.get_tensor(name).float()
    configs = json.loads(metadata.get(CONFIG_METADATA, "{}"))
    ranks: dict[str, int] = {}
    for name in tensors:
        match = FACTOR.fullmatch(name)
        if match is None or match["side"] not in ("B", "up"):
            continue
        module = match["module"]
        weight_name = re.sub("bias$", "weight", name)
        rank = tensors[weight_name].shape[1]
        scale = _configured_scale(configs, module, rank)

        alpha_name = f"{module}.alpha"
        alpha = tensors.get(alpha_name)
        if alpha is not None:
            scale = alpha.item() / rank
        tensors[name] *= scale
        ranks[alpha_name] = rank

    kept = {name: tensor for name, tensor in tensors.items() if name not in ranks}
    for name, rank in ranks.items():
        if name.startswith(NEEDS_ALPHA):
            kept[name] = torch.tensor(float(rank))
    return kept


def _require_all_layers(
    tensors: Tensors, components: Iterable[torch.nn.Module], adapter: str
) -> None:
    """Raise ValueError if a layer of a LoRA was not loaded into the components.

    A split layer is found by the beginning of its first factor. Factors of a LoKr are counted.
    """
    parameters: list[tuple[str, torch.nn.Parameter]] = []
    for component in components:
        parameters += component.named_parameters()
    loaded = [parameter for name, parameter in parameters if ".lora_A." in name]
    lokr = sum(".lokr_" in name for name in tensors)
    lost_factors = lokr
    for name, _ in parameters:
        lost_factors -= "lokr_" in name and f".{adapter}" in name
    if lost_factors > 0:
        raise ValueError(f"the model has no layer for {lost_factors} of its {lokr} factors")
    first = []
    for name in tensors:
        match = FACTOR.fullmatch(name)
        if match and match["side"] in ("A", "down") and REDUNDANT.search(name) is None:
            first.append(name)
    if lost := lost_names(first, tensors.__getitem__, loaded):
        lost = [FACTOR.sub(r"\g<module>", name) for name in lost]
        raise ValueError(f"the model has no layer for {list_names(lost)}")


def _configured_scale(configs: Config, module: str, rank: int) -> float:
    """Return a layer's scale by diffusers' metadata; 1 if the file has none."""
    component, _, name = module.partition(".")
    alpha = configs.get(f"{component}.lora_alpha")
    if alpha is None:
        return 1.0
    patterns = configs.get(f"{component}.alpha_pattern") or {}
    for pattern, its_alpha in patterns.items():
        if f".{name}".endswith(f".{pattern.lstrip('^')}"):
            alpha = its_alpha
    is_rslora = configs.get(f"{component}.use_rslora")
    return float(alpha) / (math.sqrt(rank) if is_rslora else rank)
