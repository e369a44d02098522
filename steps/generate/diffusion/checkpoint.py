"""A pipeline from a model in one file, all of whose tensors are in one of its networks."""

from collections.abc import Collection
from pathlib import Path

import diffusers
import torch
import transformers

from imagekiln.steps.generate.diffusion.loading import (
    load_networks,
    require_applied,
    require_loaded,
    require_placed,
)
from imagekiln.steps.generate.diffusion.patches import Untyped, checked_conversion
from imagekiln.steps.models.component_files import read_model_index
from imagekiln.steps.models.weights import tensor_names

# The starts of the names of tensors, by those of classes. Other networks are in no such file.
STARTS = {
    "CLIPText": ("cond_stage_model.", "conditioner.", "text_encoders.clip"),
    "T5": ("text_encoders.t5xxl.",),
    "Autoencoder": ("first_stage_model.", "vae."),
}
ABSENT = [None, None]  # a component that a pipeline does without
DENOISER = "model.diffusion_model."  # a file of a transformer alone may have none


def load_checkpoint(
    file: Path, folder: Path, pipeline: str, dtype: torch.dtype
) -> diffusers.DiffusionPipeline:
    """The pipeline of a model in one file, with the configuration in a folder.

    Raises ValueError if the file lacks a tensor, or has one that became a part of no network, and
    whatever loading raises.
    """
    names = tensor_names(file, str(file))
    held = tuple(start for start, names_start in STARTS.items() if _any_starts(names, names_start))
    index = read_model_index(folder, str(folder))
    separate = {
        name: value
        for name, value in index.items()
        if name.startswith(("text_encoder", "vae")) and any((folder / name).glob("*.safetensors"))
        if isinstance(value, list) and not str(value[1]).startswith(held)
    }
    beside: dict[str, Untyped] = {name: None for name, value in index.items() if value == ABSENT}
    beside |= load_networks(folder, separate, pipeline, None, dtype)
    with checked_conversion(_require_filled):
        pipe = getattr(diffusers, pipeline).from_single_file(
            str(file), config=str(folder), dtype=dtype, local_files_only=True, **beside
        )
    # Converters of text encoders keep the names that they do not know, the others drop them.
    prefix = DENOISER if _any_starts(names, DENOISER) else ""
    denoiser = pipe.components.get("unet") or pipe.components["transformer"]
    require_applied(file, [denoiser], prefix)
    for prefix in STARTS["Autoencoder"]:
        require_applied(file, [pipe.vae], prefix)
    return pipe


def _any_starts(names: Collection[str], start: str | tuple[str, ...]) -> bool:
    return any(name.startswith(start) for name in names)


def _require_filled(network: Untyped, tensors: dict[str, torch.Tensor]) -> None:
    if isinstance(network, transformers.PreTrainedModel):
        network.tie_weights()  # a file need not hold what is held twice
        require_placed(tensors.keys() - network.state_dict().keys())
    require_loaded(network)
