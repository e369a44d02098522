"""The files of a pipeline's components, before any library reads them: data, and no code.

diffusers and transformers import modules, run code of a model's own, read pickles and fetch other
models if a model's small files say so. Each version closes some of these ways. A model whose
files ask for one of them is refused here, whatever the libraries would make of it.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.models.hub import (
    download_snapshot,
    is_hub_id,
    list_hub_files,
)
from imagekiln.steps.models.weights import (
    SAFETENSORS_SUFFIX,
    BeforePiece,
    hash_files,
    proceed,
)
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import open_file
from imagekiln.steps.storage.store import is_plain_name
from imagekiln.steps.storage.uri import resolve_path

MODEL_INDEX_FILE = "model_index.json"
SCHEDULER_CONFIG = "scheduler/scheduler_config.json"
# With a variant's name, as in `.safetensors.index.fp16.json`. Indexes of other files are not read.
WEIGHTS_INDEX_PATTERN = "*.safetensors.index*.json"
ADAPTER_CONFIG_FILE = "adapter_config.json"
UNNAMED_MODULE = "None.py"  # what diffusers looks for if no module is named
CONFIG_PATTERN = "*config.json"
QUANTIZATION_KEYS = ("quantization_config", "quantization")
ATTENTION_KEYS = ("attn_implementation", "_attn_implementation")
CLASS_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
# diffusers imports whatever a model names. The folders of its pipelines have classes of text
# encoders, safety checkers and the like.
LIBRARIES = {
    *("diffusers", "transformers"),
    *("deepfloyd_if", "flux", "ideogram4", "kandinsky", "kolors", "latent_diffusion"),
    "stable_diffusion",
}
Config = dict[str, object]
CONFIG_FILE = "config.json"
TOKENIZER_FILES = ["*.json", "merges.txt", "vocab.txt"]
MODEL_FILES = [*TOKENIZER_FILES, "model*.safetensors"]
AUTO_CLASS = "AutoModel"  # code that a configuration names is refused, as all that Auto... heeds
IRRELEVANT_SUFFIXES = {".md", ".txt", ".png", ".jpg", ".jpeg", ".webp", ".gitattributes", ".lock"}
TOKENIZER_TEXT_FILES = {"merges.txt", "vocab.txt"}


def list_files(folder: Path, name: str) -> list[Path]:
    """The files of what errors call `name`, but for hidden ones, also behind links to folders.

    Raises BadInput, TryAgain.
    """
    files: list[Path] = []
    with translate_errors(name):
        for parent, folders, names in os.walk(folder, followlinks=True):
            folders[:] = [child for child in folders if not child.startswith(".")]
            paths = (Path(parent, child) for child in names if not child.startswith("."))
            files += [path for path in paths if path.is_file()]
    return files


def read_json(path: Path, name: str) -> Config:
    """The JSON object in a file of what errors call `name`. Raises BadInput, Missing, TryAgain."""
    with translate_errors(str(path)), open_file(path) as file:
        content = file.read()
    try:
        values = json.loads(content)
    except ValueError as error:
        raise BadInput(
            f"{name}: {path.name} is not JSON ({error}). Save the model again."
        ) from error
    if not isinstance(values, dict):
        raise BadInput(f"{name}: {path.name} is not a JSON object. Save the model again.")
    return values


def read_config(folder: Path, name: str) -> Config:
    """A configuration in a model's folder; empty if there is none. Raises BadInput, TryAgain."""
    path = folder / name
    return read_json(path, str(path)) if path.is_file() else {}


def read_model_index(folder: Path, name: str) -> Config:
    """The index of the pipeline that errors call `name`: its class and its components.

    Raises BadInput if it is none, or names anything but classes, Missing, TryAgain.
    """
    index = read_json(folder / MODEL_INDEX_FILE, name)
    pipeline = index.get("_class_name")
    if not isinstance(pipeline, str):
        raise BadInput(
            f"{name}: model_index.json names no pipeline class. Choose a diffusers folder."
        )
    if CLASS_PATTERN.fullmatch(pipeline) is None:
        raise _unusual(name, f"model_index.json has the class {cut_name(pipeline)!r}")
    for component, (library, class_name) in class_references(index):
        if (
            not is_plain_name(component)
            or library not in LIBRARIES
            or CLASS_PATTERN.fullmatch(class_name) is None
        ):
            described = cut_name(f"{component}: {library}, {class_name}")
            raise _unusual(name, f"model_index.json has {described}")
    return index


def require_data_only(folder: Path, name: str) -> None:
    """Raise BadInput if loading the pipeline in a folder could do more than read its data.

    Of a model on the hub, the small files are enough. Raises Missing, TryAgain.
    """
    index = read_model_index(folder, name)
    if (folder / UNNAMED_MODULE).exists():
        raise _unusual(name, f"{UNNAMED_MODULE} is code")
    for component, (library, class_name) in class_references(index):
        own_folder = folder / component
        if (own_folder / f"{library}.py").exists():
            raise _unusual(name, f"{component} has code of its own, {library}.py")
        # What has no folder of its own is read from that of the pipeline.
        files = own_folder if own_folder.is_dir() else folder
        require_data_component(files, f"{name}: {component}", class_name)


def require_data_component(
    folder: Path, name: str, class_name: str = "", *, may_be_quantized: bool = False
) -> None:
    """Check likewise the folder of one network, tokenizer or scheduler.

    Raises BadInput too if the network is quantized, unless it may be.
    """
    with translate_errors(name):
        configs = sorted(folder.glob(CONFIG_PATTERN))
        indexes = sorted(folder.glob(WEIGHTS_INDEX_PATTERN))
    if folder / ADAPTER_CONFIG_FILE in configs:
        raise _unusual(name, f"{ADAPTER_CONFIG_FILE} names another model to load with it")
    for path in configs:
        config = read_json(path, name)
        _check_config(config, f"{name}: {path.name}", class_name)
        method = _quantization_method(config)
        if method is not None and not may_be_quantized:
            raise quantized_error(f"{name}: {path.name}", method)
    for path in indexes:
        _check_weights_index(read_json(path, name), f"{name}: {path.name}")


def class_references(index: Config) -> Iterator[tuple[str, tuple[str, str]]]:
    """The components of an index, each with a library and a class in it. Absent ones have nulls."""
    for component, value in index.items():
        if isinstance(value, list) and len(value) == 2:
            library, class_name = value
            if isinstance(library, str) and isinstance(class_name, str):
                yield component, (library, class_name)


def _check_config(config: Config, name: str, class_name: str) -> None:
    """Raise BadInput if a configuration names code. Only classes `Auto...` heed `auto_map`."""
    if class_name.startswith("Auto") and "auto_map" in config:
        raise _unusual(name, "auto_map names code of its own")
    for key, implementation in _iter_attention(config):
        if re.search("[/:]", implementation):
            raise _unusual(name, f"{key} names code on a hub")


def _quantization_method(config: Config) -> str | None:
    """The method by which a network, or one within it, is quantized; None if it is not."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            if key in QUANTIZATION_KEYS:
                return cut_name(str(value.get("quant_method") or value.get("quant_algo") or key))
            if (method := _quantization_method(value)) is not None:
                return method
    return None


def quantized_error(subject: str, method: str) -> BadInput:
    """The error for weights that are quantized, by a method or by what shows it."""
    return BadInput(
        f"{subject}: is quantized ({method}), and Imagekiln loads float32, float16 and bfloat16. "
        "Choose the model before quantization; speed.quantization makes it fp8."
    )


def _iter_attention(config: Config) -> Iterator[tuple[str, str]]:
    """Attention implementations of a network and of those within it, each with its key.

    transformers takes a text for all of them, or texts by the names of networks.
    """
    pending: list[tuple[str, object]] = [("", config)]
    while pending:
        key, value = pending.pop()
        is_attention = key in ATTENTION_KEYS
        if isinstance(value, dict):
            pending += [(key if is_attention else name, inner) for name, inner in value.items()]
        elif isinstance(value, list):
            pending += [(key, inner) for inner in value]
        elif is_attention and isinstance(value, str):
            yield key, value


def _check_weights_index(index: Config, name: str) -> None:
    files = index.get("weight_map")
    if not isinstance(files, dict):
        raise BadInput(f"{name} has no weight_map. Save the model again.")
    for file in files.values():
        if not isinstance(file, str) or not is_plain_name(file):
            raise _unusual(name, f"it has weights in {cut_name(str(file))}, outside of its folder")
        if not file.endswith(SAFETENSORS_SUFFIX):
            raise BadInput(
                f"{name}: {cut_name(file)} is a pickle, which can run code. "
                "Convert it to safetensors."
            )


def _unusual(name: str, what: str) -> BadInput:
    return BadInput(
        f"{name}: {what}, and Imagekiln loads nothing but the model's own data. "
        "Choose another model."
    )


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


def local_folder(setting: str, name: str) -> Path:
    """The folder that a setting names if it is no hub id. Raises Missing, TryAgain."""
    folder = Path(resolve_path(name))
    with translate_errors(name):
        if not folder.is_dir():
            raise Missing(
                f"{setting}: {name} is not a folder. "
                "Set it to a folder, or to a hub id as org/name."
            )
    return folder


def weights_digest(
    reference: HubReference,
    variant: str | None = None,
    before_piece: BeforePiece = proceed,
) -> str:
    """The identity of weights: a hub model's commit, or the hash of a local folder's files."""
    if is_hub_id(reference.id):
        name = f"{reference.id}#{variant}" if variant else reference.id
        return f"{name}@{reference.revision}"
    folder = Path(resolve_path(reference.id))
    total = hashlib.sha256()
    with translate_errors(reference.id):
        files = list_files(folder, reference.id)
        paths = sorted(path for path in files if _affects_pixels(path))
        hashes = hash_files(paths, before_piece)
        for path, sha256 in zip(paths, hashes, strict=True):
            name = path.relative_to(folder).as_posix()
            total.update(f"{name}\0{sha256}\n".encode())
    if variant:
        total.update(f"\0variant {variant}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _affects_pixels(path: Path) -> bool:
    return path.suffix.lower() not in IRRELEVANT_SUFFIXES or path.name in TOKENIZER_TEXT_FILES
