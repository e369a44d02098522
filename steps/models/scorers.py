"""The models behind a job's scores: located, checked, and identified by their files."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.scores import (
    AestheticScore,
    AnyModelScore,
    ClassifierScore,
    RewardScore,
)
from imagekiln.steps.models.component_files import (
    Config,
    other_files_error,
    require_model,
    require_processor,
    weights_digest,
)
from imagekiln.steps.models.weights import SAFETENSORS_SUFFIX, file_sha256, tensor_names
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import resolve_path

CLIP_MODEL_TYPE = "clip"
MAX_LISTED_LABELS = 10


def score_references(job: Job) -> Iterator[tuple[str, HubReference]]:
    """The models and processors of a job's scores, by the path of the setting."""
    for name, score in sorted(job.scores.items()):
        if isinstance(score, AnyModelScore):
            yield f"scores.{name}", score
        if isinstance(score, RewardScore) and score.processor is not None:
            yield f"scores.{name}.processor", score.processor


def score_digests(job: Job) -> dict[str, str]:
    """Digests of the files of each score, by the path of the setting.

    Raises BadInput if a model is not what its score needs, Missing, TryAgain.
    """
    digests = {}
    for setting, reference in score_references(job):
        _require_score_model(setting, reference)
        digests[setting] = weights_digest(reference)
    for name, score in sorted(job.scores.items()):
        if isinstance(score, AestheticScore):
            setting = f"scores.{name}.head"
            digests[setting] = _head_digest(setting, score.head)
    return digests


def fetch_planned_head(setting: str, location: str, digests: Mapping[str, str]) -> Path:
    """The file of a score's layers. Raises as `fetch_planned_files`."""
    if _head_digest(setting, location) != digests.get(setting):
        raise other_files_error(setting, location)
    return Path(resolve_path(location))


def _require_score_model(setting: str, reference: HubReference) -> None:
    if isinstance(reference, AnyModelScore):
        _require_fitting_config(setting, reference, require_model(setting, reference))
    else:
        require_processor(setting, reference)


def _require_fitting_config(setting: str, score: AnyModelScore, config: Config) -> None:
    if isinstance(score, ClassifierScore):
        labels = label_names(config)
        if score.label not in labels:
            listed = ", ".join(labels[:MAX_LISTED_LABELS]) or "none"
            raise BadInput(
                f"{setting}: {score.id} has no label {score.label}; its labels are: {listed}. "
                f"Correct {setting}.label."
            )
        return
    kind = config.get("model_type")
    if kind != CLIP_MODEL_TYPE:
        raise BadInput(
            f"{setting}: {score.id} is a model of the type {kind}, and a score of the kind "
            f"{score.kind} needs a {CLIP_MODEL_TYPE}. Choose another."
        )


def label_names(config: Config) -> list[str]:
    """The labels of an image classifier, by its config.json."""
    labels = config.get("id2label")
    return [str(label) for label in labels.values()] if isinstance(labels, dict) else []


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
