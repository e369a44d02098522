"""The files of a job's ControlNet and IP-Adapter: found, refused where they are none, and known by their bytes."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from imagekiln.steps import bundled, hub, reference_files
from imagekiln.steps.adapters import ControlNet, IpAdapter
from imagekiln.steps.control_fit import KINDS, unfit
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job import Model
from imagekiln.steps.model import configuration, digest, is_hub, read_json
from imagekiln.steps.siblings import ImageEncoder, siblings

CONFIG = "config.json"
TRANSFORMER = "transformer/config.json"
NEEDED = ["*.json", "*.safetensors"]


def networks(model: Model) -> dict[str, ControlNet | IpAdapter]:
    """The job's networks, by the column whose pictures each reads."""
    wanted = {"control_image": model.controlnet, "reference_image": model.ip_adapter}
    return {column: each for column, each in wanted.items() if each is not None}


def keys(model: Model) -> dict[str, str]:
    """What identifies each network and its settings, by the column whose pictures it reads.

    Raises BadInput, Missing, TryAgain.
    """
    return {column: _key(each) for column, each in networks(model).items()}


def joined(digest: str, adapters: Mapping[str, str]) -> str:
    """What identifies all files that images are drawn with: the model's digest, and the keys where there are any."""
    return "|".join([digest, *(f"{column}={key}" for column, key in sorted(adapters.items()))])


def require(model: Model, pipeline: str) -> None:
    """Raise BadInput where the job has a network that its pipeline is known not to take, or that is none."""
    known = siblings(pipeline)
    if model.controlnet is not None:
        if known.control is None:
            raise BadInput(f"model.controlnet: {pipeline} takes none here. Remove it, or name another model.")
        _require_control(model, model.controlnet, known.control)
    if model.ip_adapter is not None:
        if known.reference is None:
            raise BadInput(f"model.ip_adapter: {pipeline} takes none here. Remove it, or name another model.")
        _require_reference(model, model.ip_adapter, known.reference)


def planned(wanted: ControlNet | IpAdapter, key: str) -> Path:
    """The folder of a network, brought here if need be.

    Raises BadInput where it is not what the run was planned with, Missing, TryAgain.
    """
    if _key(wanted) != key:
        raise BadInput(f"{wanted.id}: is not what the run was planned with. Restore it, or plan anew.")
    return hub.snapshot(wanted, NEEDED, wanted.setting) if is_hub(wanted.id) else _local(wanted)


def _key(wanted: ControlNet | IpAdapter) -> str:
    if not is_hub(wanted.id):
        _refuse_pickles(wanted)
    else:
        hub.require_revision(wanted, wanted.setting)
    settings = wanted.model_dump(mode="json", exclude={"id", "revision"})
    return hashlib.sha256(json.dumps([digest(wanted), settings], sort_keys=True).encode()).hexdigest()


def _local(wanted: ControlNet | IpAdapter) -> Path:
    folder = Path(bundled.local(wanted.id))
    if not folder.is_dir():
        raise Missing(f"{wanted.setting}: {wanted.id} is no folder. Name a folder, or a hub id as org/name.")
    return folder


def _refuse_pickles(wanted: ControlNet | IpAdapter) -> None:
    """Raise BadInput where the weights of a local network are no safetensors."""
    folder = _local(wanted)
    for pattern in wanted.weights:
        if not any(folder.glob(pattern)):
            raise BadInput(
                f"{wanted.setting}: {wanted.id} has no {pattern}. Pickles can run code: convert it to safetensors."
            )


def _require_control(model: Model, wanted: ControlNet, kind: str) -> None:
    """Raise BadInput where a folder holds no network of this kind, or one for another model."""
    path = hub.file(wanted, CONFIG, wanted.setting) if is_hub(wanted.id) else _local(wanted) / CONFIG
    found = read_json(path, wanted.setting)
    if found.get("_class_name") != kind:
        raise BadInput(f"{wanted.setting}: {wanted.id} is a {found.get('_class_name')}, not a {kind}. Name another.")
    if told := unfit(kind, found, read_json(configuration(model) / KINDS[kind].denoiser / CONFIG, model.id)):
        raise BadInput(f"{wanted.setting}: {wanted.id} {told}. Name another.")


def _require_reference(model: Model, wanted: IpAdapter, encoder: ImageEncoder) -> None:
    """Raise BadInput where a folder holds an adapter for another model. One at a hub is looked at once it is here."""
    if is_hub(wanted.id):
        return
    _refuse_pickles(wanted)
    path = configuration(model) / TRANSFORMER
    reference_files.require(_local(wanted), wanted, encoder, read_json(path, model.id) if path.is_file() else {})
