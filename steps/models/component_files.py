"""Check the files of a pipeline's components before any library reads them: data, no code.

If a model's small files say so, diffusers and transformers import modules, run the model's code,
read pickles and fetch other models. Each version closes some of these ways. A model whose files
request any of them is refused here, even if the installed libraries would ignore it.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path, PurePosixPath

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.models.hub import download_snapshot, is_hub_id, list_hub_files
from imagekiln.steps.models.quantization import (
    QUANTIZATION_CONFIG,
    QUANTIZERS,
    quantization_method,
    quantized_error,
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

CONFIG_FILE = "config.json"
CONFIG_PATTERN = "*config.json"
MODEL_INDEX_FILE = "model_index.json"
SCHEDULER_CONFIG = "scheduler/scheduler_config.json"
DENOISER_COMPONENTS = ("unet", "transformer", "prior")
# Includes a variant, as in `.safetensors.index.fp16.json`. Indexes of other files are not read.
WEIGHTS_INDEX_PATTERN = "*.safetensors.index*.json"
SAFETENSORS_PATTERN = f"*{SAFETENSORS_SUFFIX}"
ADAPTER_CONFIG_FILE = "adapter_config.json"
UNNAMED_MODULE = "None.py"  # diffusers looks for it if no module is named
QUANTIZATION_KEYS = (QUANTIZATION_CONFIG, "quantization")
ATTENTION_KEYS = ("attn_implementation", "_attn_implementation")
CODE_ON_HUB = re.compile("[/:]")
# torchao calls what a configuration names in its modules. They have functions, too.
AO_TYPE = re.compile(r"torch\.dtype|[A-Z]\w{0,99}")
CLASS_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
# diffusers imports any library that a model names. Folders of its pipelines have classes such as
# text encoders and safety checkers; glm_image has those of transformers' folder of the same name.
LIBRARIES = {
    *("diffusers", "transformers"),
    *("deepfloyd_if", "flux", "glm_image", "ideogram4", "kandinsky", "kolors", "latent_diffusion"),
    "stable_diffusion",
}
Config = dict[str, object]
IRRELEVANT_SUFFIXES = {".md", ".txt", ".png", ".jpg", ".jpeg", ".webp", ".gitattributes", ".lock"}
TOKENIZER_TEXT_FILES = {"merges.txt", "vocab.txt"}


def list_files(folder: Path) -> list[PurePosixPath]:
    """List the files in a folder, also behind links to folders, except hidden ones.

    Raises BadInput, TryAgain.
    """
    with translate_errors(str(folder)):
        names = glob("**", root_dir=folder, recursive=True)
        return [PurePosixPath(name) for name in names if (folder / name).is_file()]


def read_json(path: Path, name: str) -> Config:
    """Read the JSON object in a file of the model `name`. Raises BadInput, Missing, TryAgain."""
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
    """Read a configuration in a model's folder; empty if absent. Raises BadInput, TryAgain."""
    path = folder / name
    return read_json(path, str(path)) if path.is_file() else {}


def denoiser_component(index: Config) -> str:
    """Return the name of the network in an index that runs at every step."""
    return next((name for name in DENOISER_COMPONENTS if name in index), "unet")


def read_denoiser_config(folder: Path, index: Config) -> Config:
    """Read the configuration of the network that runs at every step. Raises as `read_config`."""
    return read_config(folder, f"{denoiser_component(index)}/{CONFIG_FILE}")


def read_model_index(folder: Path, name: str) -> Config:
    """Read the index of the pipeline `name`: its class and its components.

    Raises BadInput if it is not a pipeline or names anything but classes, Missing, TryAgain.
    """
    index = read_json(folder / MODEL_INDEX_FILE, name)
    pipeline = str(index.get("_class_name", ""))
    if CLASS_PATTERN.fullmatch(pipeline) is None:
        raise _unusual(name, f"{MODEL_INDEX_FILE} has the class {cut_name(pipeline)!r}")
    for component, (library, class_name) in class_references(index):
        is_known = library in LIBRARIES and is_plain_name(component)
        if not is_known or CLASS_PATTERN.fullmatch(class_name) is None:
            described = cut_name(f"{component}: {library}, {class_name}")
            raise _unusual(name, f"{MODEL_INDEX_FILE} has {described}")
    return index


def class_references(index: Config) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the components of an index with their library and class. Skips absent components."""
    for component, value in index.items():
        match value:
            case [str() as library, str() as class_name]:
                yield component, (library, class_name)


def require_data_only(folder: Path, name: str) -> None:
    """Raise BadInput if loading the pipeline in a folder could do more than read data.

    For a model on the hub, the small files are enough. Also raises Missing, TryAgain.
    """
    index = read_model_index(folder, name)
    if (folder / UNNAMED_MODULE).exists():
        raise _unusual(name, f"{UNNAMED_MODULE} is code")
    for component, (library, class_name) in class_references(index):
        own_folder = folder / component
        if (own_folder / f"{library}.py").exists():
            raise _unusual(name, f"{component} has code of its own, {library}.py")
        # A component without a folder is read from the pipeline's.
        files = own_folder if own_folder.is_dir() else folder
        require_data_component(files, f"{name}: {component}", class_name)


def require_data_component(
    folder: Path, name: str, class_name: str = "", *, may_be_quantized: bool = False
) -> None:
    """Raise BadInput if loading one network, tokenizer or scheduler could do more than read data.

    Also raises it if the network is quantized by a method that is not loaded, unless
    `may_be_quantized`.
    """
    with translate_errors(name):
        configs = sorted(folder.glob(CONFIG_PATTERN))
        indexes = sorted(folder.glob(WEIGHTS_INDEX_PATTERN))
    for path in configs:
        config = read_json(path, name)
        if path.name == ADAPTER_CONFIG_FILE:
            raise _unusual(name, f"{ADAPTER_CONFIG_FILE} names another model to load with it")
        # Only `Auto...` classes read it.
        if class_name.startswith("Auto") and "auto_map" in config:
            raise _unusual(f"{name}: {path.name}", "auto_map names code of its own")
        _check_config(config, f"{name}: {path.name}", may_be_quantized)
    for path in indexes:
        _check_weights_index(read_json(path, name), f"{name}: {path.name}")


def _check_config(config: Config, name: str, may_be_quantized: bool) -> None:
    own = config.get(QUANTIZATION_CONFIG)
    for key, value in _iter_settings(config):
        if key in ATTENTION_KEYS and isinstance(value, str) and CODE_ON_HUB.search(value):
            raise _unusual(name, f"{key} names code on a hub")
        if key in QUANTIZATION_KEYS and isinstance(value, dict) and value and not may_be_quantized:
            method = quantization_method({QUANTIZATION_CONFIG: value})
            is_loaded = value is own  # the libraries ignore those of a network in another
            if not is_loaded or method not in QUANTIZERS:
                raise quantized_error(name, str(method))
    for key, value in _iter_settings(own):
        if key == "_type" and AO_TYPE.fullmatch(str(value)) is None:
            raise _unusual(name, f"{cut_name(str(value))} is no class of torchao's")


def _iter_settings(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings of a configuration and its nested ones, each with its key.

    An attention implementation for one component is yielded with the key of their mapping.
    """
    yield key, value
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _iter_settings(inner, key if key in ATTENTION_KEYS else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_settings(inner, key)


def _check_weights_index(index: Config, name: str) -> None:
    """Raise BadInput if weights are pickles or lie outside the index's folder."""
    files = index.get("weight_map")
    names = files.values() if isinstance(files, dict) else ()
    for file in map(str, names):
        if not is_plain_name(file) or not file.endswith(SAFETENSORS_SUFFIX):
            raise _unusual(name, f"{cut_name(file)} is no safetensors file beside it")


def _unusual(name: str, what: str) -> BadInput:
    return BadInput(
        f"{name}: {what}, and Imagekiln loads nothing but the model's own data. "
        "Choose another model."
    )


def locate_files(setting: str, reference: HubReference, patterns: list[str]) -> Path:
    """Return the folder with the matching files of the setting's model, downloaded if need be.

    Raises BadInput, Missing, TryAgain.
    """
    if is_hub_id(reference.id):
        return download_snapshot(reference, patterns, setting)
    require_no_revision(setting, reference)
    folder = Path(resolve_path(reference.id))
    with translate_errors(reference.id):
        if not folder.is_dir():
            raise Missing(
                f"{setting}: {reference.id} is not a folder. "
                "Set it to a folder, or to a hub id as org/name."
            )
    return folder


def require_no_revision(setting: str, reference: HubReference) -> None:
    """Raise BadInput if the reference has a revision but is not a hub repository."""
    if reference.revision is not None:
        raise BadInput(
            f"{setting}.revision is {reference.revision}, and {reference.id} is no repository of a "
            f"hub, so that it has none. Remove the revision, or correct {setting}.id."
        )


def require_safetensors(
    setting: str, reference: HubReference, patterns: tuple[str, ...] = (SAFETENSORS_PATTERN,)
) -> None:
    """Raise BadInput if a pattern matches no file. Passes if the hub cannot be reached."""
    if is_hub_id(reference.id):
        names = list_hub_files(reference)
    else:
        names = tuple(map(str, list_files(locate_files(setting, reference, []))))
    for pattern in patterns:
        if names and not any(fnmatchcase(name, pattern) for name in names):
            raise BadInput(
                f"{setting}: {reference.id} has no {pattern}, and pickles can run code. "
                "Convert it to safetensors, or choose another."
            )


def other_files_error(setting: str, name: str) -> BadInput:
    """Build the error for files that differ from the plan's."""
    return BadInput(
        f"{setting}: {name} is not what the run was planned with. Restore it, or plan anew."
    )


def weights_digest(
    reference: HubReference,
    variant: str | None = None,
    before_piece: BeforePiece = proceed,
) -> str:
    """Return the identity of weights: a hub model's commit, or the hash of a folder's files."""
    if is_hub_id(reference.id):
        name = f"{reference.id}#{variant}" if variant else reference.id
        return f"{name}@{reference.revision}"
    folder = Path(resolve_path(reference.id))
    total = hashlib.sha256()
    paths = sorted(filter(_affects_pixels, list_files(folder)))
    with translate_errors(reference.id):
        hashes = hash_files(map(folder.joinpath, paths), before_piece)
    for path, sha256 in zip(paths, hashes, strict=True):
        line = f"{path}\0{sha256}\n"
        total.update(line.encode())
    if variant:
        line = f"\0variant {variant}\n"
        total.update(line.encode())
    return f"sha256:{total.hexdigest()}"


def _affects_pixels(path: PurePosixPath) -> bool:
    return path.suffix.lower() not in IRRELEVANT_SUFFIXES or path.name in TOKENIZER_TEXT_FILES
