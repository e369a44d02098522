"""Detect the kind, quantization and prediction type of a safetensors file.

The kind and quantization follow from the names of its tensors, as kohya's scripts, ComfyUI and
LyCORIS write them.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.job.fields import HubReference, PipelineSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.component_files import SCHEDULER_CONFIG, Config
from imagekiln.steps.models.quantization import quantized_error
from imagekiln.steps.models.weights import (
    GGUF_SUFFIX,
    SAFETENSORS_SUFFIX,
    Header,
    is_weights_file,
    read_header,
)
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path

LOKR, LORA, WHOLE_MODEL = "a LoKr", "a LoRA", "a whole model"
# By a part of any tensor's name, the most specific first.
KINDS: Mapping[str, str] = {
    "a LoHa": r"\.hada_w\d",
    LOKR: r"\.lokr_",
    "a BOFT": r"\.boft_",
    "an OFT": r"\.oft_",
    "an IA3": r"\.ia3_l|\.on_input$",
    "a DoRA": r"\.dora_scale$",
    LORA: r"[._]lora_(?:down|up|mid|A|B)\b|[._]lora\d?\.(?:down|up)\.",
    "a ControlNet": r"^controlnet_|\binput_hint_block\b|^zero_convs\.",
    WHOLE_MODEL: r"^model\.diffusion_model\.|^(?:double|joint)_blocks\.",
    "an IP-Adapter": r"^image_proj\.|^ip_adapter",
    "an upscaler": r"\b(?:rdb|RDB)1\.|^RRDB_trunk\.|\bresidual_group\.",
    "an embedding": r"^emb_params$|^string_to_param|^clip_[lg]$",
    "a VAE": r"^(?:first_stage_model\.|vae\.)?decoder\.(?:conv_in|mid)\b",
    "a text encoder": r"^text_model\.|^encoder\.block\.|^(?:enc\.)?blk\.",  # the last in GGUF
}
# Scales and packed numbers of fp8, bitsandbytes, GPTQ, AWQ and SVDQuant.
QUANTIZED = re.compile(
    r"(?:^|\.)(?:scaled_fp8|scale_weight|scale_input|input_scale|weight_scale(?:_2|_inv)?"
    r"|comfy_quant|(?:nested_)?absmax|(?:nested_)?quant_map|quant_state\..*|SCB"
    r"|qweight|qzeros|wscales|wcscales|smooth_factor(?:_orig)?)$"
)
EDM = re.compile(r"(?:^|\.)edm_(?:vpred|mean|std)")
# Metadata keys of https://github.com/Stability-AI/ModelSpec and of kohya's scripts. Trainers write
# epsilon if they do not know better, so it is ignored.
PREDICTION_KEYS = ("modelspec.prediction_type", "modelspec.predict_key", "ss_v_parameterization")
PREDICTIONS: Mapping[str, str] = {
    **dict.fromkeys(("v", "v_prediction", "v_pred", "velocity", "true"), "v_prediction"),
    **dict.fromkeys(("flow", "flow_prediction", "flow_matching", "rf"), "flow_prediction"),
}


def file_kind(names: Collection[str]) -> str | None:
    """Return the kind of a file by its tensor names, such as a LoHa; None if unknown."""
    for kind, pattern in KINDS.items():
        if any(re.search(pattern, name) for name in names):
            return kind
    return None


def require_plain_weights(names: Collection[str], subject: str) -> None:
    """Raise BadInput if a file's tensors are quantized, since their scales would be ignored."""
    scale = min(filter(QUANTIZED.search, names), default=None)
    if scale is not None:
        raise quantized_error(subject, f"it has {scale}")


def configuration_reference(model: PipelineSettings) -> HubReference:
    """Return the repository or folder of a model's configuration.

    For a single-file model, it is the one that `model.config` names, at the model's revision.
    """
    if model.config is None:
        return model
    return HubReference(id=model.config, revision=model.revision)


def checkpoint_file(model: ModelSettings) -> Path | None:
    """Return the file of a single-file model; None if the model is a folder or hub id.

    Raises BadInput if the file cannot be used, Missing, TryAgain.
    """
    if not is_weights_file(model.id):
        if model.config is not None:
            raise BadInput(
                "model.config is for a model in one safetensors or GGUF file, and "
                f"{model.id} is not one. Remove it."
            )
        return None
    if is_remote_uri(model.id):
        raise BadInput(
            f"{model.id}: is in an object store. Copy it to a folder or volume that all pods mount."
        )
    file = Path(resolve_path(model.id))
    suffix = file.suffix.lower()
    with translate_errors(model.id):
        if not file.is_file():
            raise Missing(f"{model.id}: no such model file. Check the name.")
    if suffix not in (SAFETENSORS_SUFFIX, GGUF_SUFFIX):
        raise BadInput(
            f"{model.id}: is a pickle, which can run code. Choose the model's safetensors file, or "
            "convert it."
        )
    if model.variant is not None:
        raise BadInput(f"{model.id}: is one file, which has no variants. Remove model.variant.")
    return file


def is_gguf(file: Path | None) -> bool:
    """Return whether the file of a single-file model is GGUF, which holds only its denoiser."""
    return file is not None and file.suffix.lower() == GGUF_SUFFIX


def require_whole_checkpoint(model: ModelSettings) -> None:
    """Raise BadInput if a single-file model is another kind of file, or has no configuration.

    Also raises as `checkpoint_file`.
    """
    names, _ = _read_header(model)
    require_plain_weights(names, model.id)
    kind = file_kind(names)
    if kind not in (WHOLE_MODEL, None):
        raise BadInput(
            f"{model.id}: is {kind}, not a model that draws. Choose a whole model; LoRAs are named "
            "in model.loras."
        )
    if names and model.config is None:
        raise BadInput(
            f"{model.id}: is one file with weights alone. Set model.config to the folder or hub id "
            "of the diffusers pipeline that it was made from."
        )


def require_fitting_configuration(model: ModelSettings, scheduler: Config) -> None:
    """Raise BadInput if a single-file model does not fit the configuration of a scheduler.

    Also raises as `checkpoint_file`.
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
    """Return the changes to its scheduler's configuration that a single-file model states.

    Empty for other models. Raises as `checkpoint_file`.
    """
    header = _read_header(model)
    names, metadata = header
    changes: Config = {}
    if _stated_prediction(header) == "v_prediction":
        changes["prediction_type"] = "v_prediction"
    if "ztsnr" in names or metadata.get("ss_zero_terminal_snr", "").lower() == "true":
        changes["rescale_betas_zero_snr"] = True
    return changes


def _stated_prediction(header: Header) -> str | None:
    names, metadata = header
    if "v_pred" in names:
        return "v_prediction"
    texts = (metadata.get(key, "").lower().replace("-", "_") for key in PREDICTION_KEYS)
    stated = filter(None, map(PREDICTIONS.get, texts))
    return next(stated, None)


def _read_header(model: ModelSettings) -> Header:
    """Read the header of a single-file model; empty for a folder."""
    file = checkpoint_file(model)
    if file is None:
        return (), {}
    with translate_errors(model.id):
        return read_header(file, model.id)
