"""A model in one safetensors file, as it is shared for web UIs, and the configuration it needs.

The file holds weights alone. What else a pipeline consists of, such as its tokenizer and scheduler,
comes from `model.config`: the folder or hub id of a pipeline of the same family.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.checkpoints import require_whole_model
from imagekiln.steps.models.component_files import (
    SAFETENSORS_SUFFIX,
    SCHEDULER_CONFIG,
    Config,
    quantized_error,
)
from imagekiln.steps.models.weights import Header, read_header, tensor_names
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path

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
EDM = re.compile(r"(?:^|\.)edm_(?:vpred|mean|std)")
# Texts in a header: https://github.com/Stability-AI/ModelSpec and kohya's scripts. Trainers write
# epsilon of models of which they know nothing else, so it is not heeded.
PREDICTION_KEYS = ("modelspec.prediction_type", "modelspec.predict_key", "ss_v_parameterization")
PREDICTIONS: Mapping[str, str] = {
    **dict.fromkeys(("v", "v_prediction", "v_pred", "velocity", "true"), "v_prediction"),
    **dict.fromkeys(("flow", "flow_prediction", "flow_matching", "rf"), "flow_prediction"),
}


def is_weights_file(name: str) -> bool:
    """Return whether a model's name is that of a file with weights, by its suffix."""
    return Path(name).suffix.lower() in {SAFETENSORS_SUFFIX, GGUF_SUFFIX, *PICKLE_SUFFIXES}


def configuration_reference(model: ModelSettings) -> HubReference:
    """The place of a model's configuration: in the model itself, or in what `model.config` names.

    The revision of a model in one file is that of its configuration.
    """
    if model.config is None:
        return model
    return HubReference(id=model.config, revision=model.revision)


def checkpoint_file(model: ModelSettings) -> Path | None:
    """The file of a model in one file; None if it is a folder or hub id.

    Raises BadInput if it cannot be used, Missing, TryAgain.
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


def require_whole_checkpoint(model: ModelSettings) -> None:
    """Raise BadInput if a model in one file is another kind of file, or has no configuration.

    Raises as `checkpoint_file` too.
    """
    file = checkpoint_file(model)
    if file is None:
        return
    with translate_errors(model.id):
        names = tensor_names(file, model.id)
    require_whole_model(names, model.id)
    if model.config is None:
        raise BadInput(f"{model.id}: is one file with weights alone. {_suggest_config(names)}")


def require_fitting_configuration(model: ModelSettings, scheduler: Config) -> None:
    """Raise BadInput if a model in one file cannot be drawn by a scheduler of this configuration.

    Raises as `checkpoint_file` too.
    """
    header = _read_header(model)
    stated = _stated_prediction(header)
    name = str(scheduler.get("_class_name"))
    is_flow = name.startswith("FlowM") or scheduler.get("prediction_type") == "flow_prediction"
    fits = stated is None or is_flow == (stated == "flow_prediction")
    if any(map(EDM.search, header[0])):
        stated, fits = "by the noise levels of EDM", name.startswith("EDM")
    if not fits:
        raise BadInput(
            f"{model.id}: says that it predicts {stated}, and {SCHEDULER_CONFIG} of model.config "
            f"is a {cut_name(name)}. Set model.config to the pipeline that it was made from."
        )


def scheduler_changes(model: ModelSettings) -> Config:
    """The changes of its scheduler's configuration that a model in one file states; else none.

    Raises as `checkpoint_file`.
    """
    header = _read_header(model)
    changes: Config = {}
    if _stated_prediction(header) == "v_prediction":
        changes["prediction_type"] = "v_prediction"
    if "ztsnr" in header[0] or header[1].get("ss_zero_terminal_snr", "").lower() == "true":
        changes["rescale_betas_zero_snr"] = True
    return changes


def _stated_prediction(header: Header) -> str | None:
    names, metadata = header
    if "v_pred" in names:
        return "v_prediction"
    texts = (metadata.get(key, "").lower().replace("-", "_") for key in PREDICTION_KEYS)
    return next(filter(None, map(PREDICTIONS.get, texts)), None)


def _read_header(model: ModelSettings) -> Header:
    """The header of a model in one file; an empty one for a folder."""
    file = checkpoint_file(model)
    if file is None:
        return (), {}
    with translate_errors(model.id):
        return read_header(file, model.id)


def _suggest_config(names: Collection[str]) -> str:
    for marker, hub_id in USUAL_CONFIGS.items():
        if any(marker in name for name in names):
            return f"Set model.config to the pipeline that it was made from, such as {hub_id}."
    return "Set model.config to the folder or hub id of a diffusers pipeline of its family."
