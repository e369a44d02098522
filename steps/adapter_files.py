"""The files of a job's ControlNet and IP-Adapter: found, refused where they are none, and known by their bytes."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from imagekiln.steps import bundled, hub, reference_files
from imagekiln.steps.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.control_fit import CONTROLNET_KINDS, controlnet_mismatch
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job import ModelSettings
from imagekiln.steps.model import configuration_folder, is_hub_id, read_json, weights_digest
from imagekiln.steps.siblings import ImageEncoderClass, variants_of

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
            raise BadInput(f"model.controlnet: {pipeline} takes none here. Remove it, or name another model.")
        _require_controlnet(model, model.controlnet, known.controlnet)
    if model.ip_adapter is not None:
        if known.ip_adapter_encoder is None:
            raise BadInput(f"model.ip_adapter: {pipeline} takes none here. Remove it, or name another model.")
        _require_ip_adapter(model, model.ip_adapter, known.ip_adapter_encoder)


def fetch_planned_adapter(wanted: ControlNetSettings | IpAdapterSettings, key: str) -> Path:
    """The folder of a network, brought here if need be.

    Raises BadInput where it is not what the run was planned with, Missing, TryAgain.
    """
    if _adapter_key(wanted) != key:
        raise BadInput(f"{wanted.id}: is not what the run was planned with. Restore it, or plan anew.")
    return (
        hub.download_snapshot(wanted, ADAPTER_FILE_PATTERNS, wanted.setting_path)
        if is_hub_id(wanted.id)
        else _local_adapter_folder(wanted)
    )


def _adapter_key(wanted: ControlNetSettings | IpAdapterSettings) -> str:
    if not is_hub_id(wanted.id):
        _refuse_pickles(wanted)
    else:
        hub.require_revision(wanted, wanted.setting_path)
    settings = wanted.model_dump(mode="json", exclude={"id", "revision"})
    return hashlib.sha256(json.dumps([weights_digest(wanted), settings], sort_keys=True).encode()).hexdigest()


def _local_adapter_folder(wanted: ControlNetSettings | IpAdapterSettings) -> Path:
    folder = Path(bundled.resolve_path(wanted.id))
    if not folder.is_dir():
        raise Missing(f"{wanted.setting_path}: {wanted.id} is no folder. Name a folder, or a hub id as org/name.")
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
        hub.download_file(wanted, CONFIG_FILE, wanted.setting_path)
        if is_hub_id(wanted.id)
        else _local_adapter_folder(wanted) / CONFIG_FILE
    )
    found = read_json(path, wanted.setting_path)
    if found.get("_class_name") != kind:
        raise BadInput(
            f"{wanted.setting_path}: {wanted.id} is a {found.get('_class_name')}, not a {kind}. Name another."
        )
    if told := controlnet_mismatch(
        kind, found, read_json(configuration_folder(model) / CONTROLNET_KINDS[kind].denoiser / CONFIG_FILE, model.id)
    ):
        raise BadInput(f"{wanted.setting_path}: {wanted.id} {told}. Name another.")


def _require_ip_adapter(model: ModelSettings, wanted: IpAdapterSettings, encoder: ImageEncoderClass) -> None:
    """Raise BadInput where a folder holds an adapter for another model. One at a hub is looked at once it is here."""
    if is_hub_id(wanted.id):
        return
    _refuse_pickles(wanted)
    path = configuration_folder(model) / TRANSFORMER_CONFIG_FILE
    reference_files.require_ip_adapter_files(
        _local_adapter_folder(wanted), wanted, encoder, read_json(path, model.id) if path.is_file() else {}
    )
