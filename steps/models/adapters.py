"""Locate, check and identify the files of a job's ControlNet and IP-Adapter."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.component_files import (
    CONFIG_FILE,
    Config,
    locate_files,
    other_files_error,
    read_denoiser_config,
    read_json,
    read_model_index,
    require_data_component,
    require_safetensors,
    weights_digest,
)
from imagekiln.steps.models.facts import configuration_folder
from imagekiln.steps.models.families import ImageEncoderClass, family_of

AdapterSettings = ControlNetSettings | IpAdapterSettings
ADAPTER_FILE_PATTERNS = ["*.json", "*.safetensors"]
CONFIG_PATTERNS = ["*.json"]
# The dimensions that a ControlNet shares with the denoiser: products of configuration keys. Keys
# that either lacks are not compared: SD3.5's own ControlNets read no prompts.
SHARED_DIMENSIONS = (
    ("cross_attention_dim",),
    ("joint_attention_dim",),
    ("pooled_projection_dim",),
    ("in_channels",),
    ("num_attention_heads", "attention_head_dim"),
)
# Keys of ControlNets that need more inputs than a control image.
UNSUPPORTED_KEYS = {
    "num_mode": "is a union ControlNet, which needs a mode",
    "extra_conditioning_channels": "needs a mask beside its image",
}
# `model_type` in transformers' configurations: of the encoder alone, and of a model that also has a
# text encoder.
ENCODER_MODEL_TYPES: Mapping[ImageEncoderClass, tuple[str, str]] = {
    "CLIPVisionModelWithProjection": ("clip_vision_model", "clip"),
    "SiglipVisionModel": ("siglip_vision_model", "siglip"),
}


def adapters_by_column(model: ModelSettings) -> dict[str, AdapterSettings]:
    """Return the job's adapters, by the column of input images that each one reads."""
    adapters: dict[str, AdapterSettings] = {}
    if model.controlnet is not None:
        adapters["control_image"] = model.controlnet
    if model.ip_adapter is not None:
        adapters["reference_images"] = model.ip_adapter
    return adapters


def adapter_keys(model: ModelSettings, pipeline: str) -> dict[str, str]:
    """Compute the digest of each adapter and its settings, by the column of images that it reads.

    Raises BadInput if the pipeline does not support one of them, Missing, TryAgain.
    """
    require_adapter_support(model, pipeline)
    adapters = adapters_by_column(model)
    return {column: _adapter_key(adapter) for column, adapter in adapters.items()}


def fetch_planned_adapter(adapter: AdapterSettings, key: str) -> Path:
    """Return the local folder of an adapter, downloaded if need be.

    Raises BadInput if it is not the adapter that the run was planned with, Missing, TryAgain.
    """
    if _adapter_key(adapter) != key:
        raise other_files_error(adapter.setting_path, adapter.id)
    return locate_files(adapter.setting_path, adapter, ADAPTER_FILE_PATTERNS)


def _adapter_key(adapter: AdapterSettings) -> str:
    settings = adapter.model_dump(mode="json", exclude={"id", "revision"})
    digest = weights_digest(adapter)
    content = json.dumps([digest, settings], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def require_adapter_support(model: ModelSettings, pipeline: str) -> None:
    """Check that a pipeline supports the model's adapters and that their files fit.

    Raises BadInput if not, Missing, TryAgain.
    """
    family = family_of(pipeline)
    supported = {"control_image": family.controlnet, "reference_images": family.ip_adapter_encoder}
    for column, adapter in adapters_by_column(model).items():
        setting = adapter.setting_path
        if supported[column] is None:
            raise BadInput(
                f"{setting}: Imagekiln does not support it for {pipeline}. "
                "Remove it, or choose another model."
            )
        require_safetensors(setting, adapter, adapter.weight_patterns)
        folder = locate_files(setting, adapter, CONFIG_PATTERNS)
        if isinstance(adapter, IpAdapterSettings):
            folder /= adapter.image_encoder
        config = read_json(folder / CONFIG_FILE, setting)
        if problem := _find_misfit(model, pipeline, adapter, config):
            raise BadInput(f"{setting}: {adapter.id} {problem}. Choose another.")
        require_data_component(folder, setting)


def _find_misfit(
    model: ModelSettings, pipeline: str, adapter: AdapterSettings, config: Config
) -> str | None:
    """Find why an adapter, or its image encoder, does not fit the model; None if it fits."""
    family = family_of(pipeline)
    if isinstance(adapter, IpAdapterSettings) and family.ip_adapter_encoder is not None:
        kind = config.get("model_type")
        if kind in ENCODER_MODEL_TYPES[family.ip_adapter_encoder]:
            return None
        return (
            f"has an image encoder of the type {kind}, but the model needs a "
            f"{family.ip_adapter_encoder}"
        )
    name = config.get("_class_name")
    if name != family.controlnet:
        return f"is a {name}, not a {family.controlnet}"
    folder = configuration_folder(model)
    denoiser = read_denoiser_config(folder, read_model_index(folder, model.id))
    return controlnet_mismatch(config, denoiser)


def controlnet_mismatch(controlnet: Config, denoiser: Config) -> str | None:
    """Return the end of a sentence on why a ControlNet does not fit a denoiser; None if it fits."""
    for key, reason in UNSUPPORTED_KEYS.items():
        if controlnet.get(key):
            return reason
    shared: tuple[tuple[str, ...], ...] = SHARED_DIMENSIONS
    if controlnet.get("_class_name") == "SD3ControlNetModel":  # FLUX.1's may read patches of a hint
        shared += (("patch_size",),)
    for keys in shared:
        own, expected = (
            _multiply(config.get(key) for key in keys) for config in (controlnet, denoiser)
        )
        if None not in (own, expected) and own != expected:
            return f"has {' x '.join(keys)} of {own}, but the model has {expected}"
    return None


def _multiply(values: Iterable[object]) -> int | None:
    product = 1
    for value in values:
        if not isinstance(value, int):
            return None
        product *= value
    return product
