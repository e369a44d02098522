"""LoRAs of an image as a string: `style:0.8, detail:0.5`, and its canonical form.

The canonical form is the same for equal sets: it names each LoRA once, sorted by name, with the
shortest digits of its weight, and omits LoRAs of weight zero. In its key, which decides pixels,
digests of files replace the names.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.job.adapters import ADAPTER_NAME_PATTERN, LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.checkpoints import LOKR, LORA, file_kind
from imagekiln.steps.models.component_files import ADAPTER_CONFIG_FILE, other_files_error
from imagekiln.steps.models.hub import download_file, is_hub_id
from imagekiln.steps.models.weights import SAFETENSORS_SUFFIX, file_sha256, tensor_names
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import resolve_path

MAX_LORA_WEIGHT = 10.0
MAX_LORAS = 8  # at once: each adds work in every layer
MAX_LORA_CHARS = 1000
WEIGHT_PATTERN = r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?"
LORA_PATTERN = re.compile(rf"\s*({ADAPTER_NAME_PATTERN})\s*(?::\s*({WEIGHT_PATTERN})\s*)?")
LoraRejectionReason = Literal["syntax", "unknown", "twice", "weight", "many"]
LORA_REJECTION_TEXTS: Mapping[LoraRejectionReason, str] = {
    "syntax": "is not written as name:weight, name:weight",
    "unknown": "names a LoRA that is not in model.loras",
    "twice": "names a LoRA twice",
    "weight": f"has a weight that is not between -{MAX_LORA_WEIGHT:g} and {MAX_LORA_WEIGHT:g}",
    "many": f"names more than {MAX_LORAS} LoRAs",
}
LENGTH_BYTES = 8  # a safetensors file begins with its header's length, 64 bits, little-endian
PEFT_FILE = "adapter_model.safetensors"
# The end of a layer's tensor names.
APPLIED_TENSOR = re.compile(
    r"[._]lora_(?:A|B|down|up)(?:\.default)?\.(?:weight|bias)$"
    r"|[._]lora(?:_linear_layer)?\d?\.(?:down|up)\.weight$"
    r"|\.lora_magnitude_vector(?:\.weight)?$|\.lokr_\w+$|\.alpha$"
)


@dataclass(frozen=True, slots=True)
class ParsedLoras:
    """Parsed LoRAs: their canonical form, None for no LoRA, or the reason for rejection."""

    canonical: str | None = None
    rejection: LoraRejectionReason | None = None


def parse_loras(text: str, names: Collection[str]) -> ParsedLoras:
    """Parse a user's LoRAs. Only these names are valid."""
    if not text.strip():
        return ParsedLoras()
    items = text[: MAX_LORA_CHARS + 1].split(",")
    matches = [*filter(None, map(LORA_PATTERN.fullmatch, items))]
    weights = {match[1]: float(match[2] or 1) for match in matches}
    faults: dict[LoraRejectionReason, bool] = {
        "many": len(text) > MAX_LORA_CHARS or len(items) > MAX_LORAS,
        "syntax": len(matches) < len(items),
        "unknown": not weights.keys() <= {*names},
        "twice": len(weights) < len(items),
        "weight": any(abs(weight) > MAX_LORA_WEIGHT for weight in weights.values()),
    }
    for reason, applies in faults.items():
        if applies:
            return ParsedLoras(rejection=reason)
    return ParsedLoras(format_loras(weights))


def format_loras(weights: Mapping[str, float]) -> str | None:
    """Format weights in canonical form; None if all are zero."""
    items = []
    for name, weight in sorted(weights.items()):
        if weight:
            items.append(f"{name}:{format_weight(weight)}")
    return ",".join(items) or None


def lora_weights(loras: str | None) -> dict[str, float]:
    """Parse the weight of each LoRA from the canonical form."""
    if not loras:
        return {}
    items = (item.rpartition(":") for item in loras.split(","))
    return {name: float(weight) for name, _, weight in items}


def lora_key(loras: str, digests: Mapping[str, str]) -> str:
    """Convert the canonical form to the key that decides pixels: each file's digest and weight."""
    weights = lora_weights(loras)
    return ",".join(sorted(f"{digests[name]}:{format_weight(weights[name])}" for name in weights))


def format_weight(weight: float) -> str:
    """Format a weight with its shortest digits."""
    return repr(weight).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class LoraFacts:
    """Hashes of a LoRA that a plan freezes: of its file, and of its tensors alone.

    Web UIs identify LoRAs by the hash of the tensors.
    """

    sha256: str
    tensors: str


def load_lora_facts(model: ModelSettings) -> dict[str, LoraFacts]:
    """Read the facts of each LoRA of the job, by name. Raises BadInput, Missing, TryAgain."""
    return {
        name: _read_lora_facts(fetch_lora_file(name, lora), _setting_path(name))
        for name, lora in sorted(model.loras.items())
    }


def fetch_lora_file(name: str, lora: LoraSettings) -> Path:
    """Return the local file of a LoRA, downloaded if need be.
    Raises BadInput, Missing, TryAgain.
    """
    setting = _setting_path(name)
    if is_hub_id(lora.id):
        if lora.weight_name is None:
            raise BadInput(
                f"{setting}.weight_name is missing: name the safetensors file at {lora.id}."
            )
        _require_safetensors(setting, lora.weight_name)
        return download_file(lora, lora.weight_name, setting)
    with translate_errors(lora.id):
        file = _find_file(setting, lora)
        if not file.is_file():
            raise Missing(
                f"{setting}: {file} does not exist. "
                "Choose a safetensors file, or a hub id as org/name."
            )
    _require_safetensors(setting, file.name)
    return file


def _find_file(setting: str, lora: LoraSettings) -> Path:
    path = Path(resolve_path(lora.id))
    if not path.is_dir():
        return path
    if lora.weight_name is not None:
        return path / lora.weight_name
    files = sorted(path.glob(f"*{SAFETENSORS_SUFFIX}"))
    if len(files) != 1:
        raise BadInput(
            f"{setting}: {lora.id} has {len(files)} safetensors files. Choose one by weight_name."
        )
    return files[0]


def _require_safetensors(setting: str, file: str) -> None:
    if not file.endswith(SAFETENSORS_SUFFIX):
        raise BadInput(
            f"{setting}: {file} is not a safetensors file, so it may hold code. Convert it."
        )


def fetch_planned_lora(name: str, lora: LoraSettings, sha256: str) -> Path:
    """Return the local file of a LoRA that the run was planned with.

    Raises BadInput if the file has changed since, Missing, TryAgain.
    """
    path = fetch_lora_file(name, lora)
    with translate_errors(str(path)):
        if file_sha256(path) != sha256:
            raise other_files_error(_setting_path(name), path.name)
    return path


def _setting_path(name: str) -> str:
    return f"model.loras.{name}"


def _read_lora_facts(path: Path, setting: str) -> LoraFacts:
    with translate_errors(str(path)):
        _require_lora_tensors(tensor_names(path, setting), path, setting)
        return LoraFacts(file_sha256(path), _tensors_sha256(path))


def _tensors_sha256(path: Path) -> str:
    """Hash everything after the header of a complete safetensors file."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
        file.seek(LENGTH_BYTES + header_bytes)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_lora_tensors(names: Collection[str], path: Path, setting: str) -> None:
    """Raise BadInput if a file has tensors that are not applied to a layer.

    diffusers silently drops some of them.
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
