"""A model in one safetensors file, as it is shared for web UIs, and the configuration it needs.

The file holds weights alone. What else a pipeline consists of, such as its tokenizer and scheduler,
comes from `model.config`: the folder or hub id of a pipeline of the same family.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.checkpoints import (
    Prediction,
    read_prediction,
    require_fitting_scheduler,
    require_same_family,
    require_whole_model,
)
from imagekiln.steps.models.component_files import quantized_error
from imagekiln.steps.models.weights import read_header
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path

SAFETENSORS_SUFFIX = ".safetensors"
GGUF_SUFFIX = ".gguf"
PICKLE_SUFFIXES = {".bin", ".ckpt", ".pt", ".pth", ".pkl"}
# By a part of the names of a checkpoint's tensors, the more special ones first.
USUAL_CONFIGS: Mapping[str, str] = {
    "conditioner.embedders.1.": "stabilityai/stable-diffusion-xl-base-1.0",
    "joint_blocks.37.": "stabilityai/stable-diffusion-3.5-large",
    "joint_blocks.0.x_block.attn2.": "stabilityai/stable-diffusion-3.5-medium",
    "joint_blocks.": "stabilityai/stable-diffusion-3-medium-diffusers",
    "double_blocks.": "black-forest-labs/FLUX.1-dev",
    "cond_stage_model.model.": "stabilityai/stable-diffusion-2-1",
    "cond_stage_model.transformer.": "stable-diffusion-v1-5/stable-diffusion-v1-5",
}


def is_weights_file(name: str) -> bool:
    """Whether a model's name is that of a file with weights, by its suffix."""
    return Path(name).suffix.lower() in {SAFETENSORS_SUFFIX, GGUF_SUFFIX, *PICKLE_SUFFIXES}


def configuration_reference(model: ModelSettings) -> HubReference:
    """Where a model's configuration is: in the model itself, or in what `model.config` names.

    The revision of a model in one file is that of its configuration.
    """
    if model.config is None:
        return model
    return HubReference(id=model.config, revision=model.revision)


def checkpoint_file(model: ModelSettings) -> Path | None:
    """The file of a model in one file; None where it is a folder or hub id.

    Raises BadInput where it cannot be used, Missing, TryAgain.
    """
    if not is_weights_file(model.id):
        if model.config is not None:
            raise BadInput(
                f"model.config is for a model in one safetensors file, and {model.id} is not one. "
                "Remove it."
            )
        return None
    if is_remote_uri(model.id):
        raise BadInput(
            f"{model.id}: is in an object store. Copy it to a folder or volume that all pods mount."
        )
    file = Path(resolve_path(model.id))
    with translate_errors(model.id):
        if file.is_dir():
            return None
        _require_usable(model, file)
    return file


def _require_usable(model: ModelSettings, file: Path) -> None:
    if not file.is_file():
        raise Missing(f"{model.id}: no such model file. Check the name.")
    if file.suffix.lower() == GGUF_SUFFIX:
        raise quantized_error(model.id, "GGUF")
    if file.suffix.lower() != SAFETENSORS_SUFFIX:
        raise BadInput(
            f"{model.id}: is a pickle, which can run code. Choose the model's safetensors file, or "
            "convert it."
        )
    if model.variant is not None:
        raise BadInput(f"{model.id}: is one file, which has no variants. Remove model.variant.")
    header = read_header(file, model.id)
    require_whole_model(header, model.id)
    if model.config is None:
        suggestion = _suggest_config(header.names)
        raise BadInput(f"{model.id}: is one file with weights alone. {suggestion}")


def require_fitting_configuration(model: ModelSettings, folder: Path, pipeline: str) -> None:
    """Raise BadInput if a model in one file says that its configuration is of something else.

    Raises Missing, TryAgain too.
    """
    if (file := checkpoint_file(model)) is not None:
        with translate_errors(model.id):
            header = read_header(file, model.id)
        require_same_family(header, model.id, pipeline)
        require_fitting_scheduler(header, model.id, folder)


def stated_prediction(model: ModelSettings) -> Prediction:
    """Return the prediction that a model in one file states; nothing for a folder.

    Raises as `checkpoint_file`.
    """
    file = checkpoint_file(model)
    if file is None:
        return Prediction()
    with translate_errors(model.id):
        return read_prediction(read_header(file, model.id), model.id)


def _suggest_config(names: Collection[str]) -> str:
    for marker, hub_id in USUAL_CONFIGS.items():
        if any(marker in name for name in names):
            return f"Set model.config to the pipeline that it was made from, such as {hub_id}."
    return "Set model.config to the folder or hub id of a diffusers pipeline of its family."
