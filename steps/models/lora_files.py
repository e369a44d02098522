"""The files of a job's LoRAs: located, checked, and identified by their bytes."""

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.checkpoints import LOKR, LORA, file_kind
from imagekiln.steps.models.component_files import ADAPTER_CONFIG_FILE, SAFETENSORS_SUFFIX
from imagekiln.steps.models.facts import is_hub_id
from imagekiln.steps.models.hub import download_file
from imagekiln.steps.models.hub_cache import loading_from_cache
from imagekiln.steps.models.weights import file_sha256, tensor_names
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import resolve_path

LENGTH_BYTES = 8  # a safetensors file begins with its header's length, 64 bits, little-endian
PEFT_FILE = "adapter_model.safetensors"
# The end of the name of a tensor of a layer.
APPLIED_TENSOR = re.compile(
    r"[._]lora_(?:A|B|down|up)(?:\.default)?\.(?:weight|bias)$"
    r"|[._]lora(?:_linear_layer)?\d?\.(?:down|up)\.weight$"
    r"|\.lora_magnitude_vector(?:\.weight)?$|\.lokr_\w+$|\.alpha$"
)


@dataclass(frozen=True, slots=True)
class LoraFacts:
    """Hashes of a LoRA that a plan freezes: of its file, and of its tensors alone.

    Web UIs identify LoRAs by the latter.
    """

    sha256: str
    tensors: str


def load_lora_facts(model: ModelSettings) -> dict[str, LoraFacts]:
    """The facts of each LoRA of the job, by name. Raises BadInput, Missing, TryAgain."""
    return {
        name: _read_lora_facts(fetch_lora_file(name, lora), _setting_path(name))
        for name, lora in sorted(model.loras.items())
    }


def fetch_lora_file(name: str, lora: LoraSettings) -> Path:
    """The file of a LoRA on this machine, downloaded if need be.

    Raises BadInput, Missing, TryAgain.
    """
    setting = _setting_path(name)
    if is_hub_id(lora.id):
        return _download_lora(lora, setting)
    path = Path(resolve_path(lora.id))
    with translate_errors(lora.id):
        file = path if path.is_file() else _find_in_folder(path, lora, setting)
    _require_safetensors(setting, file.name)
    return file


def fetch_planned_lora(name: str, lora: LoraSettings, sha256: str) -> Path:
    """The file of a LoRA that the run was planned with.

    Raises BadInput if the file is another one by now, Missing, TryAgain.
    """
    path = fetch_lora_file(name, lora)
    setting = _setting_path(name)
    with loading_from_cache(lora.id, path):
        if _read_lora_facts(path, setting).sha256 != sha256:
            raise BadInput(
                f"{setting}: {path.name} is not the file that the run was planned with. "
                "Restore it, or plan anew."
            )
    return path


def _setting_path(name: str) -> str:
    return f"model.loras.{name}"


def _download_lora(lora: LoraSettings, setting: str) -> Path:
    if lora.weight_name is None:
        raise BadInput(f"{setting}.weight_name is missing: name the safetensors file at {lora.id}.")
    _require_safetensors(setting, lora.weight_name)
    return download_file(lora, lora.weight_name, setting)


def _find_in_folder(folder: Path, lora: LoraSettings, setting: str) -> Path:
    if not folder.is_dir():
        raise Missing(
            f"{setting}: {lora.id} does not exist. "
            "Choose a safetensors file, or a hub id as org/name."
        )
    if lora.weight_name is not None:
        path = folder / lora.weight_name
        if not path.is_file():
            raise Missing(
                f"{setting}: {lora.id} has no file {lora.weight_name}. Correct weight_name."
            )
        return path
    candidates = sorted(folder.glob(f"*{SAFETENSORS_SUFFIX}"))
    if len(candidates) != 1:
        raise BadInput(
            f"{setting}: {lora.id} has {len(candidates)} safetensors files. "
            "Choose one by weight_name."
        )
    return candidates[0]


def _require_safetensors(setting: str, file: str) -> None:
    if not file.endswith(SAFETENSORS_SUFFIX):
        raise BadInput(
            f"{setting}: {file} is not a safetensors file, so it may hold code. Convert it."
        )


def _read_lora_facts(path: Path, setting: str) -> LoraFacts:
    with translate_errors(str(path)):
        _require_lora_tensors(tensor_names(path, setting), path, setting)
        return LoraFacts(file_sha256(path), _tensors_sha256(path))


def _tensors_sha256(path: Path) -> str:
    """The hash of all that follows the header of a whole safetensors file."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
        file.seek(LENGTH_BYTES + header_bytes)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_lora_tensors(names: Collection[str], path: Path, setting: str) -> None:
    """Raise BadInput if a file has tensors that would not be applied, as they are for each layer.

    diffusers drops some of them in silence.
    """
    kind = file_kind(names)
    unknown = sorted(name for name in names if APPLIED_TENSOR.search(name) is None)
    if kind not in (LORA, LOKR):
        problem = f"is {kind}, not a plain LoRA" if kind else "holds no LoRA"
    elif path.name == PEFT_FILE:
        problem = f"is peft's own file, whose scale is in {ADAPTER_CONFIG_FILE} and not read"
    elif unknown:
        tensor = cut_name(unknown[0])
        problem = f"has {tensor}, one of {len(unknown)} tensors that no layer of a LoRA takes"
    else:
        return
    raise BadInput(f"{setting}: {path.name} {problem}. Choose another file.")
