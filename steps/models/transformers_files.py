"""The files of a transformers model that a job names beside its diffusion model."""

from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.models.component_files import (
    CONFIG_PATTERN,
    SAFETENSORS_SUFFIX,
    Config,
    read_json,
    require_data_component,
)
from imagekiln.steps.models.facts import is_hub_id, local_folder, weights_digest
from imagekiln.steps.models.hub import download_snapshot, list_hub_files
from imagekiln.steps.models.hub_cache import loading_from_cache

CONFIG_FILE = "config.json"
TOKENIZER_FILES = ["*.json", "merges.txt", "vocab.txt"]
MODEL_FILES = [*TOKENIZER_FILES, "model*.safetensors"]
AUTO_CLASS = "AutoModel"  # code that a configuration names is refused, as all that Auto... heeds


def fetch_planned_files(setting: str, reference: HubReference, digest: str | None) -> Path:
    """The folder of a model on this machine, downloaded if need be.

    Raises BadInput if it is not what the run was planned with, Missing, TryAgain.
    """
    if weights_digest(reference) != digest:
        raise other_files_error(setting, reference.id)
    if is_hub_id(reference.id):
        folder = download_snapshot(reference, MODEL_FILES, setting)
    else:
        folder = local_folder(setting, reference.id)
    with loading_from_cache(reference.id, folder):
        require_data_component(folder, setting, AUTO_CLASS)
    return folder


def other_files_error(setting: str, name: str) -> BadInput:
    """The error for files that are not those of the plan."""
    return BadInput(
        f"{setting}: {name} is not what the run was planned with. Restore it, or plan anew."
    )


def require_processor(setting: str, reference: HubReference) -> Path:
    """The folder with the small files of a tokenizer and image processor.

    Raises BadInput if there are none, or they name code, Missing, TryAgain.
    """
    if is_hub_id(reference.id):
        folder = download_snapshot(reference, TOKENIZER_FILES, setting)
    else:
        folder = local_folder(setting, reference.id)
    if not any(folder.glob(CONFIG_PATTERN)):
        raise BadInput(
            f"{setting}: {reference.id} has no {CONFIG_FILE}, so it is no model of transformers. "
            "Choose another."
        )
    require_data_component(folder, setting, AUTO_CLASS)
    return folder


def require_model(setting: str, reference: HubReference) -> Config:
    """The configuration of a model whose weights are safetensors. Raises as `require_processor`."""
    folder = require_processor(setting, reference)
    if is_hub_id(reference.id):
        names = list_hub_files(reference)
        has_weights = not names or any(name.endswith(SAFETENSORS_SUFFIX) for name in names)
    else:
        has_weights = any(folder.glob(f"*{SAFETENSORS_SUFFIX}"))
    if not has_weights:
        raise BadInput(
            f"{setting}: {reference.id} has no safetensors, and pickles can run code. "
            "Convert it to safetensors, or choose another."
        )
    return read_json(folder / CONFIG_FILE, setting)
