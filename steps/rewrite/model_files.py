"""The files of a language model: fetched or in a folder, and what they say that it is."""

from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.job.prompts import LanguageModelSettings
from imagekiln.steps.models.component_files import read_json, require_data_component
from imagekiln.steps.models.hub import download_snapshot, is_hub_id
from imagekiln.steps.models.weights import PICKLE_SUFFIXES
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import resolve_path

CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
# As transformers names them: of weights, no others, which may be those of other frameworks.
FILE_PATTERNS = (
    "*.json",
    "*.jinja",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
WEIGHT_PATTERN = "model*.safetensors"


def require_language_model(reference: LanguageModelSettings, setting: str) -> None:
    """Raise BadInput if the small files are of no model of transformers, or name other files.

    They may name code of its own, which transformers does not run unless it is told to trust it.
    Raises Missing, TryAgain if they cannot be fetched.
    """
    folder = _find_folder(reference, setting, [*FILE_PATTERNS])
    if (folder / ADAPTER_FILE).is_file():
        raise BadInput(
            f"{reference.id}: is an adapter of another model. Merge it, or set {setting}.id to a "
            "whole model."
        )
    if not (folder / CONFIG_FILE).is_file():
        raise BadInput(
            f"{reference.id}: has no config.json, so it is not a model of transformers. "
            f"Set {setting}.id to another."
        )
    require_data_component(folder, reference.id, may_be_quantized=True)


def fetch_weights(reference: LanguageModelSettings, setting: str) -> Path:
    """A folder with all of the model's files.

    Raises BadInput if it has no safetensors, or names more than its own data, Missing, TryAgain.
    """
    folder = _find_folder(reference, setting, [*FILE_PATTERNS, WEIGHT_PATTERN])
    require_data_component(folder, reference.id, may_be_quantized=True)
    if any(folder.glob(WEIGHT_PATTERN)):
        return folder
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    reason = "has no safetensors"
    if pickles:
        reason = f"{pickles[0]} is a pickle, which can run code"
    raise BadInput(
        f"{reference.id}: {reason}. Convert it to safetensors, or set {setting}.id to another."
    )


def read_architecture(folder: Path, name: str) -> str:
    """The class that the model's configuration names. Raises BadInput if it names none."""
    classes = read_json(folder / CONFIG_FILE, name).get("architectures")
    if isinstance(classes, list) and classes and isinstance(classes[0], str):
        return cut_name(classes[0])
    raise BadInput(f"{name}: config.json names no architecture. Choose another model.")


def _find_folder(reference: LanguageModelSettings, setting: str, patterns: list[str]) -> Path:
    if is_hub_id(reference.id):
        return download_snapshot(reference, patterns, setting)
    if reference.revision is not None:
        raise BadInput(
            f"{setting}.revision is {reference.revision}, and {reference.id} is no repository of a "
            f"hub, so that it has none. Remove the revision, or correct {setting}.id."
        )
    folder = Path(resolve_path(reference.id))
    with translate_errors(reference.id):
        if not folder.is_dir():
            raise Missing(
                f"{reference.id}: no such model folder. Correct {setting}.id: a folder, or a hub "
                "id as org/name."
            )
    return folder
