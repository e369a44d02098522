"""The files of a job's ControlNet and IP-Adapter: found, refused where they are none, and known by their bytes."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import configuration_folder, is_hub_id, read_json, weights_digest
from imagekiln.steps.models.families import ImageEncoderClass, variants_of
from imagekiln.steps.models.hub import download_file, download_snapshot, require_revision
from imagekiln.steps.models.weights import read
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import resolve_path

ModelConfig = Mapping[str, object]
ConfigKeys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ControlNetKind:
    """A class of ControlNets, and the part of a model that it works beside.

    Both must have the product of `equal` keys, which are said in words. What sets one of `unlike` needs more than a
    picture to draw by.
    """

    denoiser: str
    equal_dimensions: Mapping[ConfigKeys, str]
    unsupported_keys: Mapping[str, str] = field(default_factory=dict)


_TRANSFORMER_DIMENSIONS: Mapping[ConfigKeys, str] = {
    ("joint_attention_dim",): "reads texts of {} channels",
    ("pooled_projection_dim",): "reads pooled texts of {} channels",
    ("in_channels",): "reads latents of {} channels",
    ("num_attention_heads", "attention_head_dim"): "has layers of {} channels",
}
CONTROLNET_KINDS: Mapping[str, ControlNetKind] = {
    "ControlNetModel": ControlNetKind(
        "unet", {("cross_attention_dim",): "reads texts of {} channels"}
    ),
    "FluxControlNetModel": ControlNetKind(
        "transformer", _TRANSFORMER_DIMENSIONS, {"num_mode": "is a union, which asks for a mode"}
    ),
    "SD3ControlNetModel": ControlNetKind(
        "transformer",
        {**_TRANSFORMER_DIMENSIONS, ("patch_size",): "reads patches of side {}"},
        {"extra_conditioning_channels": "reads a mask beside its picture"},
    ),
}


def controlnet_mismatch(kind: str, control: ModelConfig, denoiser: ModelConfig) -> str | None:
    """Why a ControlNet of this class is none for a denoiser, as the end of a sentence about it; None where it fits.

    What one of them does not say is not compared: SD3.5's own ControlNets read no texts.
    """
    known = CONTROLNET_KINDS[kind]
    for key, said in known.unsupported_keys.items():
        if control.get(key):
            return said
    for keys, said in known.equal_dimensions.items():
        ours, theirs = _dimension(control, keys), _dimension(denoiser, keys)
        if ours is not None and theirs is not None and ours != theirs:
            return f"{said.format(ours)}, and the model has {theirs}"
    return None


def _dimension(config: ModelConfig, keys: ConfigKeys) -> int | None:
    values = [config.get(key) for key in keys]
    numbers = [value for value in values if isinstance(value, int)]
    return math.prod(numbers) if len(numbers) == len(values) else None


# As transformers' configurations name them: alone, and as a half of what reads texts too.
ENCODER_MODEL_TYPES: Mapping[ImageEncoderClass, tuple[str, str]] = {
    "CLIPVisionModelWithProjection": ("clip_vision_model", "clip"),
    "SiglipVisionModel": ("siglip_vision_model", "siglip"),
}
IP_ADAPTER_BLOCK = re.compile(r"(?:ip_adapter|double_blocks)\.(\d{1,4})\.")


def require_ip_adapter_files(
    folder: Path,
    wanted: IpAdapterSettings,
    encoder: ImageEncoderClass,
    denoiser: Mapping[str, object],
) -> None:
    """Raise BadInput where the files in `folder` are not for this image encoder and a denoiser so configured.

    Raises Missing, TryAgain too.
    """
    kind = read_json(folder / wanted.image_encoder / "config.json", wanted.setting_path).get(
        "model_type"
    )
    if kind not in ENCODER_MODEL_TYPES[encoder]:
        raise BadInput(
            f"{wanted.setting_path}: {wanted.id} has an image encoder of the kind {kind}, and the model reads what a "
            f"{encoder} makes of pictures. Name another."
        )
    found, blocks = (
        _ip_adapter_blocks(folder / wanted.weight_patterns[0], wanted.setting_path),
        _reference_block_count(denoiser),
    )
    if blocks is not None and found != {
        *range(blocks)
    }:  # diffusers would leave out what is for more
        raise BadInput(
            f"{wanted.setting_path}: {wanted.weight_name} is for {len(found)} blocks of a transformer, and the model has "
            f"{blocks}. Name another."
        )


def _ip_adapter_blocks(file: Path, setting: str) -> set[int]:
    """The numbers of the blocks that an adapter is for."""
    with translate_errors(str(file)):
        found = read(file, setting)
    return {int(each[1]) for name in found if (each := IP_ADAPTER_BLOCK.match(name))}


def _reference_block_count(denoiser: Mapping[str, object]) -> int | None:
    """How many blocks of a transformer read a reference; None for UNets, whose blocks are numbered otherwise."""
    layers, dual = denoiser.get("num_layers"), denoiser.get("dual_attention_layers")
    more = len(dual) if isinstance(dual, list | tuple) else 0  # SD 3.5 medium's that attend twice
    return layers + more if isinstance(layers, int) else None


CONFIG_FILE = "config.json"
TRANSFORMER_CONFIG_FILE = "transformer/config.json"
ADAPTER_FILE_PATTERNS = ["*.json", "*.safetensors"]


def adapters_by_column(model: ModelSettings) -> dict[str, ControlNetSettings | IpAdapterSettings]:
    """The job's networks, by the column whose pictures each reads."""
    wanted = {"control_image": model.controlnet, "reference_image": model.ip_adapter}
    return {column: each for column, each in wanted.items() if each is not None}


def adapter_keys(model: ModelSettings) -> dict[str, str]:
    """What identifies each network and its settings, by the column whose pictures it reads.

    Raises BadInput, Missing, TryAgain.
    """
    return {column: _adapter_key(each) for column, each in adapters_by_column(model).items()}


def digest_with_adapters(digest: str, adapters: Mapping[str, str]) -> str:
    """What identifies all files that images are drawn with: the model's digest, and the keys where there are any."""
    return "|".join([digest, *(f"{column}={key}" for column, key in sorted(adapters.items()))])


def require_adapter_support(model: ModelSettings, pipeline: str) -> None:
    """Raise BadInput where the job has a network that its pipeline is known not to take, or that is none."""
    known = variants_of(pipeline)
    if model.controlnet is not None:
        if known.controlnet is None:
            raise BadInput(
                f"model.controlnet: {pipeline} takes none here. Remove it, or name another model."
            )
        _require_controlnet(model, model.controlnet, known.controlnet)
    if model.ip_adapter is not None:
        if known.ip_adapter_encoder is None:
            raise BadInput(
                f"model.ip_adapter: {pipeline} takes none here. Remove it, or name another model."
            )
        _require_ip_adapter(model, model.ip_adapter, known.ip_adapter_encoder)


def fetch_planned_adapter(wanted: ControlNetSettings | IpAdapterSettings, key: str) -> Path:
    """The folder of a network, brought here if need be.

    Raises BadInput where it is not what the run was planned with, Missing, TryAgain.
    """
    if _adapter_key(wanted) != key:
        raise BadInput(
            f"{wanted.id}: is not what the run was planned with. Restore it, or plan anew."
        )
    return (
        download_snapshot(wanted, ADAPTER_FILE_PATTERNS, wanted.setting_path)
        if is_hub_id(wanted.id)
        else _local_adapter_folder(wanted)
    )


def _adapter_key(wanted: ControlNetSettings | IpAdapterSettings) -> str:
    if not is_hub_id(wanted.id):
        _refuse_pickles(wanted)
    else:
        require_revision(wanted, wanted.setting_path)
    settings = wanted.model_dump(mode="json", exclude={"id", "revision"})
    return hashlib.sha256(
        json.dumps([weights_digest(wanted), settings], sort_keys=True).encode()
    ).hexdigest()


def _local_adapter_folder(wanted: ControlNetSettings | IpAdapterSettings) -> Path:
    folder = Path(resolve_path(wanted.id))
    if not folder.is_dir():
        raise Missing(
            f"{wanted.setting_path}: {wanted.id} is no folder. Name a folder, or a hub id as org/name."
        )
    return folder


def _refuse_pickles(wanted: ControlNetSettings | IpAdapterSettings) -> None:
    """Raise BadInput where the weights of a local network are no safetensors."""
    folder = _local_adapter_folder(wanted)
    for pattern in wanted.weight_patterns:
        if not any(folder.glob(pattern)):
            raise BadInput(
                f"{wanted.setting_path}: {wanted.id} has no {pattern}. Pickles can run code: convert it to safetensors."
            )


def _require_controlnet(model: ModelSettings, wanted: ControlNetSettings, kind: str) -> None:
    """Raise BadInput where a folder holds no network of this kind, or one for another model."""
    path = (
        download_file(wanted, CONFIG_FILE, wanted.setting_path)
        if is_hub_id(wanted.id)
        else _local_adapter_folder(wanted) / CONFIG_FILE
    )
    found = read_json(path, wanted.setting_path)
    if found.get("_class_name") != kind:
        raise BadInput(
            f"{wanted.setting_path}: {wanted.id} is a {found.get('_class_name')}, not a {kind}. Name another."
        )
    if told := controlnet_mismatch(
        kind,
        found,
        read_json(
            configuration_folder(model) / CONTROLNET_KINDS[kind].denoiser / CONFIG_FILE, model.id
        ),
    ):
        raise BadInput(f"{wanted.setting_path}: {wanted.id} {told}. Name another.")


def _require_ip_adapter(
    model: ModelSettings, wanted: IpAdapterSettings, encoder: ImageEncoderClass
) -> None:
    """Raise BadInput where a folder holds an adapter for another model. One at a hub is looked at once it is here."""
    if is_hub_id(wanted.id):
        return
    _refuse_pickles(wanted)
    path = configuration_folder(model) / TRANSFORMER_CONFIG_FILE
    require_ip_adapter_files(
        _local_adapter_folder(wanted),
        wanted,
        encoder,
        read_json(path, model.id) if path.is_file() else {},
    )
