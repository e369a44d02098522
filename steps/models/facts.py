"""What a plan must know of a model without loading it: where its files are, and what decides its pixels."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.families import family_of, unsupported_reason
from imagekiln.steps.models.hub import HubReference, download_configuration, list_hub_files
from imagekiln.steps.models.weights import file_sha256
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import BUNDLED_PREFIX, resolve_path

PICKLE_SUFFIXES = {".bin", ".ckpt", ".pt", ".pth", ".pkl"}
IRRELEVANT_SUFFIXES = {".md", ".txt", ".png", ".jpg", ".jpeg", ".webp", ".gitattributes", ".lock"}
TOKENIZER_TEXT_FILES = {"merges.txt", "vocab.txt"}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The part of a model that the plan freezes. Sizes are in pixels."""

    digest: str
    pipeline: str
    width: int
    height: int
    size_multiple: int


def load_model_facts(model: ModelSettings) -> ModelFacts:
    """Read the model's configuration.

    Raises BadInput where it is no safetensors pipeline, or none that draws from a text alone, Missing, TryAgain.
    """
    folder = configuration_folder(model)
    pipeline, index = _read_model_index(model, folder)
    if why := unsupported_reason(pipeline):
        raise BadInput(f"{model.id}: is a {pipeline}, which {why}.")
    denoiser = next((name for name in ("unet", "transformer", "prior") if name in index), None)
    vae = "vae" if "vae" in index else None
    side, multiple = _default_side_and_multiple(
        *(_read_optional_json(folder / str(name) / "config.json") for name in (denoiser, vae))
    )
    known = family_of(pipeline)
    side, multiple = known.default_size or side, known.size_multiple or multiple
    return ModelFacts(weights_digest(model), pipeline, side, side, multiple)


def configuration_folder(model: ModelSettings) -> Path:
    """A local folder with at least the model's small files: all of them, or a hub model's configuration."""
    if is_hub_id(model.id):
        return download_configuration(model)
    folder = Path(resolve_path(model.id))
    with translate_errors(model.id):
        if folder.is_file():
            raise BadInput(
                f"{model.id}: is a file. Convert it to a diffusers folder with safetensors."
            )
        if not folder.is_dir():
            raise Missing(
                f"{model.id}: no such model folder. Write a folder, or a hub id as org/name."
            )
    if not (folder / "model_index.json").is_file():
        raise BadInput(
            f"{model.id}: has no model_index.json, so it is no diffusers pipeline. Name another folder."
        )
    return folder


def is_hub_id(name: str) -> bool:
    """Whether a model's name is a hub id: org/name, and no such folder here."""
    plain = not name.startswith((BUNDLED_PREFIX, ".", "/", "~")) and name.count("/") == 1
    return plain and not Path(name).exists()


def weights_digest(model: HubReference) -> str:
    """What identifies the weights: a hub model's commit, or the hash of a local folder's files, not its path."""
    if is_hub_id(model.id):
        return f"{model.id}@{model.revision}"
    folder = Path(resolve_path(model.id))
    total = hashlib.sha256()
    with translate_errors(model.id):
        for path in sorted(
            path for path in folder.rglob("*") if path.is_file() and _affects_pixels(path, folder)
        ):
            total.update(f"{path.relative_to(folder).as_posix()}\0{file_sha256(path)}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _affects_pixels(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and (
        path.suffix.lower() not in IRRELEVANT_SUFFIXES or path.name in TOKENIZER_TEXT_FILES
    )


def _read_model_index(model: ModelSettings, folder: Path) -> tuple[str, dict[str, object]]:
    """The class of the pipeline in a folder, and its components. Raises BadInput where one of them is a pickle."""
    index = read_json(folder / "model_index.json", model.id)
    pipeline = index.get("_class_name")
    if not isinstance(pipeline, str):
        raise BadInput(
            f"{model.id}: model_index.json names no pipeline class. Name a diffusers folder."
        )
    _refuse_pickles(model, folder, index)
    return pipeline, index


def _refuse_pickles(model: ModelSettings, folder: Path, index: dict[str, object]) -> None:
    """Raise BadInput where a component has pickles and no safetensors. The pipeline reads nothing of other folders."""
    names = (
        list_hub_files(model)
        if is_hub_id(model.id)
        else [each.relative_to(folder) for each in folder.rglob("*")]
    )
    paths = [
        path for path in map(PurePosixPath, names) if isinstance(index.get(path.parts[0]), list)
    ]
    safe = {path.parent for path in paths if path.suffix == ".safetensors"}
    for path in sorted(paths):
        if path.suffix.lower() in PICKLE_SUFFIXES and path.parent not in safe:
            raise BadInput(
                f"{model.id}: {path} is a pickle, which can run code. Convert it to safetensors."
            )


def _default_side_and_multiple(
    denoiser: dict[str, object], vae: dict[str, object]
) -> tuple[int, int]:
    factor = _vae_scale_factor(vae)
    sample, patch = (
        denoiser.get("sample_size", 128),
        denoiser.get("patch_size", 2 if "all_patch_size" in denoiser else 1),
    )
    latent = sample if isinstance(sample, int) else 128
    # Pipelines ask for a multiple of 8 whatever the VAE; transformers also cut latents into patches.
    cut = max(patch if isinstance(patch, int) else 2, _packing_factor(denoiser, vae))
    return latent * factor, max(8, factor * cut)


def _packing_factor(denoiser: dict[str, object], vae: dict[str, object]) -> int:
    """The side of the squares of latents that a pipeline packs into channels: FLUX says nothing of it as a patch."""
    channels, latents = denoiser.get("in_channels"), vae.get("latent_channels")
    return 2 if isinstance(latents, int) and channels == 4 * latents else 1


def _vae_scale_factor(vae: dict[str, object]) -> int:
    blocks = vae.get("block_out_channels") or vae.get("encoder_block_out_channels")
    return 2 ** (len(blocks) - 1) if isinstance(blocks, list) else 8


def _read_optional_json(path: Path) -> dict[str, object]:
    return read_json(path, str(path)) if path.is_file() else {}


def read_json(path: Path, name: str) -> dict[str, object]:
    """The settings in a file of what `name` names. Raises BadInput where it holds none, Missing, TryAgain."""
    try:
        with translate_errors(str(path)):
            content = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(
            f"{name}: {path.name} is not JSON ({error}). Save the model again."
        ) from error
    if not isinstance(content, dict):
        raise BadInput(f"{name}: {path.name} is not a JSON object. Save the model again.")
    return content


def default_image_size(job: Job, facts: ModelFacts) -> tuple[int, int]:
    """Width and height of an image whose row says nothing, in pixels."""
    return job.defaults.width or facts.width, job.defaults.height or facts.height
