"""A pipeline's LoRAs: each loaded once, beside the model's own weights, and in force only where rows ask for it.

They are not fused: adding to weights and taking away again would leave another model behind. So one that is not in
force costs memory and no time, and no image depends on those before it.
"""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import diffusers
import torch
from diffusers.utils import set_adapter_layers, set_weights_and_activate_adapters
from peft.tuners.tuners_utils import BaseTunerLayer

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.generate.diffusion.device import is_device_lost, is_out_of_memory
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.models.lora_files import LoraFacts, fetch_planned_lora
from imagekiln.steps.models.loras import format_loras, lora_weights
from imagekiln.steps.storage.failures import error_reason

LAYER_TENSOR_MARKERS = (
    "lora",
    "lokr",
)  # in the names of tensors that change layers, as they are once loaded


class LoraLayers:
    """The LoRAs of one pipeline. Texts and pixels may have others in force, so that one is made ahead of the other."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        wanted: Mapping[str, LoraSettings],
        planned: Mapping[str, LoraFacts],
    ) -> None:
        """Take a loaded pipeline, and the LoRAs by name as the job wants them and as they were planned; load none."""
        self._pipe = pipe
        self._wanted = wanted
        self._digests = {name: each.sha256 for name, each in planned.items()}
        self._adapters: dict[str, str] = {}
        self._active: dict[bool, str | None] = {}  # in text encoders, and in all else

    def load(self, names: Iterable[str]) -> None:
        """Load those that are not there yet. Raises BadInput where one does not fit the model, Missing, TryAgain."""
        for name in sorted(set(names) - self._adapters.keys()):
            self._load_lora(name)

    def activate(self, wanted: str | None, *, texts: bool) -> str | None:
        """Put a canonical text's LoRAs in force: in the text encoders, or in all else. Loads what is missing.

        Returns the canonical text of those that change something there.
        """
        weights = lora_weights(wanted)
        self.load(weights)
        components = [
            each for name, each in self._components() if name.startswith("text_encoder") is texts
        ]
        there = {adapter for each in components for adapter in getattr(each, "peft_config", ())}
        weights = {
            name: weight for name, weight in weights.items() if self._adapters[name] in there
        }
        acting = format_loras(weights)
        if self._active.get(texts, "") != acting:
            for each in components:
                self._activate_component(each, weights)
            self._active[texts] = acting
        return acting

    def _components(self) -> list[tuple[str, torch.nn.Module]]:
        named = (
            (name, getattr(self._pipe, name, None))
            for name in getattr(self._pipe, "_lora_loadable_modules", ())
        )
        return [(name, each) for name, each in named if isinstance(each, torch.nn.Module)]

    def _activate_component(self, component: torch.nn.Module, weights: Mapping[str, float]) -> None:
        there = getattr(component, "peft_config", {})
        # Sums of floats depend on their order, so it is not that of names.
        order = sorted(weights, key=lambda name: (self._digests[name], weights[name]))
        active = [name for name in order if self._adapters[name] in there]
        if active:
            adapters = [self._adapters[name] for name in active]
            set_weights_and_activate_adapters(
                component, adapters, [weights[name] for name in active]
            )
            _scales_to_tensors(component)
        set_adapter_layers(component, enabled=bool(active))
        component.requires_grad_(False)

    def _load_lora(self, name: str) -> None:
        path = fetch_planned_lora(name, self._wanted[name], self._digests[name])
        adapter = f"adapter_{len(self._adapters)}"  # names of people's own may be those of PyTorch's attributes
        if not hasattr(self._pipe, "load_lora_weights"):
            raise BadInput(f"model.loras: {type(self._pipe).__name__} takes no LoRA. Remove them.")
        try:
            with warnings.catch_warnings(
                action="ignore"
            ):  # peft warns of a second adapter in a model
                self._pipe.load_lora_weights(
                    str(path.parent),
                    weight_name=path.name,
                    adapter_name=adapter,
                    use_safetensors=True,
                    local_files_only=True,
                )
            self._require_all_layers(path, adapter)
        except Exception as error:  # whatever a stranger's file makes the libraries raise
            raise _explain_load_error(f"model.loras.{name}", error) from error
        for _, component in self._components():
            component.eval()  # new layers are in train mode, where they drop out at random
        self._adapters[name] = adapter
        self._active.clear()  # a LoRA is in force once it is loaded

    def _require_all_layers(self, path: Path, adapter: str) -> None:
        """Raise ValueError where the model has no layer for some tensors: diffusers leaves these out."""
        found = self._pipe.lora_state_dict(
            str(path.parent), weight_name=path.name, use_safetensors=True, local_files_only=True
        )
        tensors = found[0] if isinstance(found, tuple) else found
        wanted = sum(
            any(mark in name for mark in LAYER_TENSOR_MARKERS) and "alpha" not in name
            for name in tensors
        )
        fitting = sum(
            f".{adapter}." in f"{name}."
            for _, component in self._components()
            for name, _ in component.named_parameters()
        )
        if fitting < wanted:
            raise ValueError(
                f"the model has no layer for {wanted - fitting} of its {wanted} tensors"
            )


def _scales_to_tensors(component: torch.nn.Module) -> None:
    """Hold weights as tensors without axes: compiled code has numbers in it, and another weight would be other code."""
    for layer in component.modules():
        if isinstance(layer, BaseTunerLayer):
            scales: dict[str, float | torch.Tensor] = vars(layer)["scaling"]
            scales.update(
                {name: torch.as_tensor(each, dtype=torch.float32) for name, each in scales.items()}
            )


def _explain_load_error(setting: str, error: Exception) -> KilnError:
    if isinstance(error, KilnError):
        return error
    if isinstance(error, KeyError) and isinstance(error.__context__, Exception):
        error = error.__context__  # diffusers tidies up after a failure what is not always there
    if is_out_of_memory(error) or is_device_lost(error):
        return TryAgain(
            f"{setting}: the device has no room for it, or failed ({error_reason(error)}). Run the shard again."
        )
    return BadInput(
        f"{setting}: does not fit the model ({error_reason(error)}). Name another LoRA, or another model."
    )
