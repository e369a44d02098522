"""The files of a job's ControlNet and IP-Adapter: located, checked, identified by their bytes."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.component_files import (
    CONFIG_FILE,
    list_files,
    local_folder,
    read_json,
    require_data_component,
    weights_digest,
)
from imagekiln.steps.models.facts import configuration_folder
from imagekiln.steps.models.families import ImageEncoderClass, family_of
from imagekiln.steps.models.hub import download_file, download_snapshot, is_hub_id, list_hub_files
from imagekiln.steps.models.weights import tensor_names
from imagekiln.steps.storage.failures import translate_errors

AdapterSettings = ControlNetSettings | IpAdapterSettings
ModelConfig = Mapping[str, object]
ConfigKeys = tuple[str, ...]
TRANSFORMER_CONFIG_FILE = "transformer/config.json"
ADAPTER_FILE_PATTERNS = ["*.json", "*.safetensors"]


def adapters_by_column(model: ModelSettings) -> dict[str, AdapterSettings]:
    """The job's adapters, by the column whose images each one reads."""
    adapters: dict[str, AdapterSettings] = {}
    if model.controlnet is not None:
        adapters["control_image"] = model.controlnet
    if model.ip_adapter is not None:
        adapters["reference_image"] = model.ip_adapter
    return adapters


def adapter_keys(model: ModelSettings, pipeline: str) -> dict[str, str]:
    """Digests of each adapter and its settings, by the column whose images it reads.

    Raises BadInput if the pipeline does not support one of them, Missing, TryAgain.
    """
    require_adapter_support(model, pipeline)
    adapters = adapters_by_column(model)
    return {column: _adapter_key(adapter) for column, adapter in adapters.items()}


def fetch_planned_adapter(adapter: AdapterSettings, key: str) -> Path:
    """The folder of an adapter on this machine, downloaded if need be.

    Raises BadInput if it is not what the run was planned with, Missing, TryAgain.
    """
    if _adapter_key(adapter) != key:
        raise BadInput(
            f"{adapter.id}: is not what the run was planned with. Restore it, or plan anew."
        )
    if is_hub_id(adapter.id):
        return download_snapshot(adapter, ADAPTER_FILE_PATTERNS, adapter.setting_path)
    return local_folder(adapter.setting_path, adapter.id)


def _adapter_key(adapter: AdapterSettings) -> str:
    if not is_hub_id(adapter.id):
        _refuse_pickles(adapter)
    settings = adapter.model_dump(mode="json", exclude={"id", "revision"})
    content = json.dumps([weights_digest(adapter), settings], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _refuse_pickles(adapter: AdapterSettings) -> None:
    """Raise BadInput if an adapter's weights are not in safetensors files."""
    if is_hub_id(adapter.id):
        names = list_hub_files(adapter)
        if not names:  # the hub cannot be reached
            return
    else:
        folder = local_folder(adapter.setting_path, adapter.id)
        files = list_files(folder, adapter.id)
        names = tuple(file.relative_to(folder).as_posix() for file in files)
    for pattern in adapter.weight_patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(
                f"{adapter.setting_path}: {adapter.id} has no {pattern}. "
                "Pickles can run code: convert it to safetensors."
            )


def require_adapter_support(model: ModelSettings, pipeline: str) -> None:
    """Raise BadInput if a pipeline does not support an adapter, or its files do not fit."""
    variants = family_of(pipeline)
    if model.controlnet is not None:
        if variants.controlnet is None:
            raise BadInput(
                f"model.controlnet: Imagekiln supports no ControlNet for {pipeline}. "
                "Remove it, or choose another model."
            )
        _require_controlnet(model, model.controlnet, variants.controlnet)
    if model.ip_adapter is not None:
        if variants.ip_adapter_encoder is None:
            raise BadInput(
                f"model.ip_adapter: Imagekiln supports no IP-Adapter for {pipeline}. "
                "Remove it, or choose another model."
            )
        _require_ip_adapter(model, model.ip_adapter, variants.ip_adapter_encoder)


@dataclass(frozen=True, slots=True)
class ControlNetKind:
    """A class of ControlNets, and the denoiser that it works with, a component of the model.

    Both must have the same product of `equal_dimensions`' keys; the texts describe a ControlNet
    whose product is another one. A ControlNet that sets one of `unsupported_keys` needs more than
    an image to draw by.
    """

    denoiser: str
    equal_dimensions: Mapping[ConfigKeys, str]
    unsupported_keys: Mapping[str, str] = field(default_factory=dict)


_TRANSFORMER_DIMENSIONS: Mapping[ConfigKeys, str] = {
    ("joint_attention_dim",): "expects text embeddings of {} channels",
    ("pooled_projection_dim",): "expects pooled text embeddings of {} channels",
    ("in_channels",): "expects latents of {} channels",
    ("num_attention_heads", "attention_head_dim"): "has layers of {} channels",
}
CONTROLNET_KINDS: Mapping[str, ControlNetKind] = {
    "ControlNetModel": ControlNetKind(
        "unet", {("cross_attention_dim",): "expects text embeddings of {} channels"}
    ),
    "FluxControlNetModel": ControlNetKind(
        "transformer",
        _TRANSFORMER_DIMENSIONS,
        {"num_mode": "is a union ControlNet, which needs a mode"},
    ),
    "SD3ControlNetModel": ControlNetKind(
        "transformer",
        {**_TRANSFORMER_DIMENSIONS, ("patch_size",): "expects patches of side {}"},
        {"extra_conditioning_channels": "needs a mask beside its image"},
    ),
}


def controlnet_mismatch(kind: str, controlnet: ModelConfig, denoiser: ModelConfig) -> str | None:
    """The end of a sentence on a ControlNet that does not fit a denoiser; None if it fits.

    Values that a configuration omits are not compared: SD3.5's own ControlNets read no texts.
    """
    requirements = CONTROLNET_KINDS[kind]
    for key, reason in requirements.unsupported_keys.items():
        if controlnet.get(key):
            return reason
    for keys, description in requirements.equal_dimensions.items():
        actual = _dimension(controlnet, keys)
        expected = _dimension(denoiser, keys)
        if actual is not None and expected is not None and actual != expected:
            return f"{description.format(actual)}, but the model has {expected}"
    return None


def _dimension(config: ModelConfig, keys: ConfigKeys) -> int | None:
    values = [config.get(key) for key in keys]
    numbers = [value for value in values if isinstance(value, int)]
    return math.prod(numbers) if len(numbers) == len(values) else None


def _require_controlnet(model: ModelSettings, controlnet: ControlNetSettings, kind: str) -> None:
    """Raise BadInput if a folder holds no ControlNet of this kind, or one for another model."""
    setting = controlnet.setting_path
    if is_hub_id(controlnet.id):
        path = download_file(controlnet, CONFIG_FILE, setting)
    else:
        path = local_folder(controlnet.setting_path, controlnet.id) / CONFIG_FILE
    config = read_json(path, setting)
    name = config.get("_class_name")
    if name is None:
        raise BadInput(
            f"{setting}: {controlnet.id}: {CONFIG_FILE} names no class; expected {kind}. "
            "Choose another."
        )
    if name != kind:
        raise BadInput(f"{setting}: {controlnet.id} is a {name}, not a {kind}. Choose another.")
    component = CONTROLNET_KINDS[kind].denoiser
    denoiser = read_json(configuration_folder(model) / component / CONFIG_FILE, model.id)
    if mismatch := controlnet_mismatch(kind, config, denoiser):
        raise BadInput(f"{setting}: {controlnet.id} {mismatch}. Choose another.")
    require_data_component(path.parent, setting)
    _refuse_pickles(controlnet)


# As transformers' configurations name them: the encoder alone, and as half of a model that also
# reads texts.
ENCODER_MODEL_TYPES: Mapping[ImageEncoderClass, tuple[str, str]] = {
    "CLIPVisionModelWithProjection": ("clip_vision_model", "clip"),
    "SiglipVisionModel": ("siglip_vision_model", "siglip"),
}
IP_ADAPTER_BLOCK = re.compile(r"(?:ip_adapter|double_blocks)\.(\d{1,4})\.")


def _require_ip_adapter(
    model: ModelSettings, adapter: IpAdapterSettings, encoder: ImageEncoderClass
) -> None:
    """Raise BadInput if a folder holds an adapter for another model.

    What is in the files of an adapter on a hub is checked once they are downloaded.
    """
    _refuse_pickles(adapter)
    if is_hub_id(adapter.id):
        return
    path = configuration_folder(model) / TRANSFORMER_CONFIG_FILE
    denoiser = read_json(path, model.id) if path.is_file() else {}
    folder = local_folder(adapter.setting_path, adapter.id)
    require_ip_adapter_files(folder, adapter, encoder, denoiser)


def require_ip_adapter_files(
    folder: Path, adapter: IpAdapterSettings, encoder: ImageEncoderClass, denoiser: ModelConfig
) -> None:
    """Raise BadInput if the files in `folder` are not for this image encoder and denoiser.

    Raises Missing, TryAgain too.
    """
    setting = adapter.setting_path
    encoder_config = read_json(folder / adapter.image_encoder / CONFIG_FILE, setting)
    require_data_component(folder / adapter.image_encoder, setting)
    kind = encoder_config.get("model_type")
    if kind not in ENCODER_MODEL_TYPES[encoder]:
        raise BadInput(
            f"{setting}: {adapter.id} has an image encoder of the type {kind}, but the model needs "
            f"a {encoder}. Choose another."
        )
    file = folder / adapter.weight_patterns[0]
    with translate_errors(str(file)):
        names = tensor_names(file, setting)
    blocks = {match[1] for name in names if (match := IP_ADAPTER_BLOCK.match(name))}
    layers = denoiser.get("num_layers")
    if not isinstance(layers, int):
        return  # a UNet, whose blocks are numbered otherwise
    dual = denoiser.get("dual_attention_layers")  # those of SD 3.5 medium that attend twice
    layers += len(dual) if isinstance(dual, list | tuple) else 0
    if len(blocks) != layers:
        raise BadInput(
            f"{setting}: {adapter.weight_name} is for {len(blocks)} blocks of a transformer, but "
            f"the model has {layers}. Choose another."
        )
