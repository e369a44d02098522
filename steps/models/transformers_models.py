"""Locate, check and identify the transformers models that score and change images."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.passes import AnyModelPass
from imagekiln.steps.job.scores import (
    AestheticScore,
    AnyModelScore,
    ClassifierScore,
    RewardScore,
)
from imagekiln.steps.models.component_files import (
    CONFIG_FILE,
    CONFIG_PATTERN,
    SAFETENSORS_PATTERN,
    Config,
    locate_files,
    other_files_error,
    read_json,
    require_data_component,
    require_safetensors,
    weights_digest,
)
from imagekiln.steps.models.weights import SAFETENSORS_SUFFIX, file_sha256, tensor_names
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import resolve_path

AnyModel = AnyModelScore | AnyModelPass
TOKENIZER_FILES = ["*.json", "merges.txt", "vocab.txt"]
MODEL_FILES = [*TOKENIZER_FILES, f"model{SAFETENSORS_PATTERN}"]
AUTO_CLASS = "AutoModel"  # for the check of code that `Auto...` classes would load
# The model types that each kind of score or pass takes. Classifiers may have any type.
MODEL_TYPES: Mapping[str, tuple[str, ...]] = {
    "clip_score": ("clip",),
    "reward": ("clip",),
    "aesthetic": ("clip",),
    "upscale": ("swin2sr",),
    "caption": ("blip", "git"),
}
MAX_LISTED_LABELS = 10


def score_references(job: Job) -> Iterator[tuple[str, HubReference]]:
    """Yield the models and processors of a job's scores, by the path of the setting."""
    for name, score in sorted(job.scores.items()):
        if isinstance(score, AnyModelScore):
            yield f"scores.{name}", score
        if isinstance(score, RewardScore) and score.processor is not None:
            yield f"scores.{name}.processor", score.processor


def score_digests(job: Job) -> dict[str, str]:
    """Compute the digest of each score's files, by the path of the setting.

    Raises BadInput if a model does not fit its score, Missing, TryAgain.
    """
    digests = {}
    for setting, reference in score_references(job):
        if isinstance(reference, AnyModelScore):
            require_model(setting, reference)
        else:
            _locate_processor(setting, reference)
        digests[setting] = weights_digest(reference)
    for name, score in sorted(job.scores.items()):
        if isinstance(score, AestheticScore):
            setting = f"scores.{name}.head"
            digests[setting] = _head_digest(setting, score.head)
    return digests


def require_model(setting: str, model: AnyModel) -> Config:
    """Check the model of a score or pass and return its configuration.

    Raises BadInput if it has another type, no safetensors, or names code, Missing, TryAgain.
    """
    folder = _locate_processor(setting, model)
    require_safetensors(setting, model)
    config = read_json(folder / CONFIG_FILE, setting)
    if isinstance(model, ClassifierScore):
        _require_label(setting, model, config)
        return config
    kind = config.get("model_type")
    types = MODEL_TYPES[model.kind]
    if kind not in types:
        raise BadInput(
            f"{setting}: {model.id} is a model of the type {str(kind)[:40]}, and {model.kind} "
            f"needs {' or '.join(types)}. Choose another."
        )
    return config


def _locate_processor(setting: str, reference: HubReference) -> Path:
    """Return the folder with the small files of a tokenizer and image processor."""
    folder = locate_files(setting, reference, TOKENIZER_FILES)
    if not any(folder.glob(CONFIG_PATTERN)):
        raise BadInput(
            f"{setting}: {reference.id} has no {CONFIG_FILE}, so it is no model of transformers. "
            "Choose another."
        )
    require_data_component(folder, setting, AUTO_CLASS)
    return folder


def _require_label(setting: str, score: ClassifierScore, config: Config) -> None:
    names = config.get("id2label")
    labels: list[str] = []
    if isinstance(names, dict):
        labels = [str(name) for name in names.values()]
    if score.label not in labels:
        listed = ", ".join(labels[:MAX_LISTED_LABELS]) or "none"
        raise BadInput(
            f"{setting}: {score.id} has no label {score.label}; its labels are: {listed}. "
            f"Correct {setting}.label."
        )


def fetch_planned_files(setting: str, reference: HubReference, digest: str | None) -> Path:
    """Return the local folder of a model, downloaded if need be.

    Raises BadInput if it is not the model that the run was planned with, Missing, TryAgain.
    """
    if weights_digest(reference) != digest:
        raise other_files_error(setting, reference.id)
    folder = locate_files(setting, reference, MODEL_FILES)
    require_data_component(folder, setting, AUTO_CLASS)
    return folder


def fetch_planned_head(setting: str, location: str, digests: Mapping[str, str]) -> Path:
    """Return the file of a score's layers. Raises as `fetch_planned_files`."""
    if _head_digest(setting, location) != digests.get(setting):
        raise other_files_error(setting, location)
    return Path(resolve_path(location))


def _head_digest(setting: str, location: str) -> str:
    path = Path(resolve_path(location))
    if path.suffix != SAFETENSORS_SUFFIX:
        raise BadInput(
            f"{setting}: {location} is not a safetensors file, so it may hold code. Convert it."
        )
    with translate_errors(location):
        if not path.is_file():
            raise Missing(f"{setting}: {location} does not exist. Name a safetensors file.")
        tensor_names(path, setting)
        return f"sha256:{file_sha256(path)}"
