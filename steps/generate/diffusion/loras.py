"""A pipeline's LoRAs: each is loaded once, and active for the rows that ask for it.

They are never fused: adding to weights and subtracting again would leave a different model behind.
So a LoRA that is not active costs memory but no time, and no image depends on those before it.
"""

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import diffusers
import torch
from diffusers.utils import set_adapter_layers, set_weights_and_activate_adapters

from imagekiln.steps.errors import BadInput, KilnError, explained_by
from imagekiln.steps.generate.diffusion.device import explain_device
from imagekiln.steps.generate.diffusion.lora_scales import (
    list_names,
    read_scaled_tensors,
    require_all_converted,
)
from imagekiln.steps.generate.diffusion.patches import (
    lora_components,
    lora_scales_to_tensors,
    set_own_scales,
)
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.models.checkpoints import adapter_kind
from imagekiln.steps.models.hub_cache import loading_from_cache
from imagekiln.steps.models.lora_files import LoraFacts, fetch_planned_lora
from imagekiln.steps.models.loras import format_loras, lora_weights
from imagekiln.steps.models.weights import tensor_names
from imagekiln.steps.storage.failures import error_reason

LOKR = "a LoKr"  # as `adapter_kind` calls it
# In the names of loaded tensors that change layers.
LAYER_TENSOR_MARKERS = ("lora", "lokr")


class LoraLayers:
    """The LoRAs of one pipeline.

    The text encoders and the rest may have different ones active, so that texts can be encoded
    ahead of the batch that needs them.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        settings: Mapping[str, LoraSettings],
        planned: Mapping[str, LoraFacts],
    ) -> None:
        """Take a loaded pipeline, and the LoRAs by name as in the job and as planned; load none."""
        self._pipe = pipe
        self._settings = settings
        self._digests = {name: facts.sha256 for name, facts in planned.items()}
        self._adapters: dict[str, str] = {}  # peft's name of each LoRA that is loaded
        self._active: dict[bool, str | None] = {}  # by whether in the text encoders

    def load(self, names: Iterable[str]) -> None:
        """Load the LoRAs that are not loaded.

        Raises BadInput where one does not fit, Missing, TryAgain.
        """
        for name in sorted(set(names) - self._adapters.keys()):
            self._load_lora(name)

    def activate(self, loras: str | None, *, texts: bool) -> str | None:
        """Activate exactly these LoRAs in the text encoders, or in all other components.

        `loras` is canonical text. Loads those that are not loaded. Returns the canonical text of
        the LoRAs that change something there.
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
        # The order of a sum of floats matters, so it must not be that of the user's names.
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
        path = fetch_planned_lora(name, self._settings[name], self._digests[name])
        if not hasattr(self._pipe, "load_lora_weights"):
            raise BadInput(
                f"model.loras: {type(self._pipe).__name__} supports no LoRA. Remove them."
            )
        # Not the user's name, which may be that of an attribute of PyTorch's.
        adapter = f"adapter_{len(self._adapters)}"
        setting, pipeline = f"model.loras.{name}", type(self._pipe).__name__
        explain = partial(_explain_misfit, setting, path, pipeline)
        with loading_from_cache(self._settings[name].id, path), explained_by(explain):
            self._load_layers(path, adapter)
        for component in lora_components(self._pipe).values():
            component.eval()  # new layers are in train mode, where dropout is random
        self._adapters[name] = adapter
        self._active.clear()  # loading a LoRA activates it

    def _load_layers(self, path: Path, adapter: str) -> None:
        tensors = read_scaled_tensors(path)
        state = self._pipe.lora_state_dict(dict(tensors))
        converted = state[0] if isinstance(state, tuple) else state
        require_all_converted(tensors, converted)
        with warnings.catch_warnings(action="ignore"):  # peft warns of a model's second adapter
            self._pipe.load_lora_weights(tensors, adapter_name=adapter)
        self._require_all_layers(converted, adapter)
        for component in lora_components(self._pipe).values():
            set_own_scales(component, adapter)

    def _require_all_layers(self, tensors: Iterable[str], adapter: str) -> None:
        """Raise ValueError if the model has no layer for some tensors: diffusers skips these."""
        components = lora_components(self._pipe)
        expected = [name for name in tensors if _changes_layer(name)]
        loaded = sum(
            f".{adapter}." in f"{name}."
            for component in components.values()
            for name, _ in component.named_parameters()
        )
        if loaded < len(expected):
            strange = [name for name in expected if name.partition(".")[0] not in components]
            lost = f"{len(expected) - loaded} of its {len(expected)} tensors"
            raise ValueError(
                f"the model has no layer for {list_names(strange) if strange else lost}"
            )


def _changes_layer(tensor: str) -> bool:
    return "alpha" not in tensor and any(marker in tensor for marker in LAYER_TENSOR_MARKERS)


def _explain_misfit(setting: str, path: Path, pipeline: str, error: Exception) -> KilnError:
    """What a user's file makes of the libraries' errors, which may be any."""
    if isinstance(error, KeyError) and isinstance(error.__context__, Exception):
        error = error.__context__  # diffusers' own clean-up failed after the real error
    reason = error_reason(error)
    if adapter_kind(tensor_names(path, setting)) == LOKR:
        reason = f"it is {LOKR}, which {pipeline} may not take: {reason}"
    return explain_device(setting, error) or BadInput(
        f"{setting}: does not fit the model ({reason}). Choose another LoRA, or another model."
    )
