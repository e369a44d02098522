"""Facts about a model that a plan records: its pipeline, sizes and digest."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.columns import MAX_SIDE
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.checkpoints import (
    checkpoint_file,
    configuration_reference,
    require_fitting_configuration,
    require_known_scheduler,
    require_plain_weights,
    require_whole_checkpoint,
)
from imagekiln.steps.models.component_files import (
    MODEL_INDEX_FILE,
    SCHEDULER_CONFIG,
    Config,
    list_files,
    read_config,
    read_denoiser_config,
    read_json,
    read_model_index,
    require_data_only,
    weights_digest,
)
from imagekiln.steps.models.families import family_of, unsupported_reason
from imagekiln.steps.models.hub import (
    download_configuration,
    is_hub_id,
    list_hub_files,
    measure_weights,
)
from imagekiln.steps.models.own_settings import NO_GUIDANCE, OwnSettings, read_own_settings
from imagekiln.steps.models.weights import (
    PICKLE_SUFFIXES,
    SAFETENSORS_SUFFIX,
    BeforePiece,
    hash_files,
    proceed,
    tensor_names,
)
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import BUNDLED_FOLDER, BUNDLED_PREFIX, resolve_path

DEFAULT_SAMPLE_SIZE = 128  # of latents, if a configuration states none
DEFAULT_VAE_SCALE_FACTOR = 8
MAX_VAE_BLOCKS = 16
MIN_SIZE_MULTIPLE = 8  # pipelines require a multiple of 8 whatever the VAE
AnyPath = TypeVar("AnyPath", bound=PurePath)
ModelPaths = list[PurePosixPath]  # of files, on the hub or in the model's folder


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The part of a model that the plan freezes. Sizes are in pixels.

    `weights_bytes` is what its weights take once they are loaded; None if no header of theirs
    could be read.
    """

    digest: str
    pipeline: str
    width: int
    height: int
    size_multiple: int
    own: OwnSettings
    weights_bytes: int | None = field(default=None, compare=False)  # the digest says which they are


def load_model_facts(model: ModelSettings) -> ModelFacts:
    """Find the model's configuration and read it. Raises what `locate_model` raises."""
    _, facts = locate_model(model)
    return facts


def locate_model(model: ModelSettings, *, from_images: bool = False) -> tuple[Path, ModelFacts]:
    """The folder of the model's configuration, and what it states.

    Raises BadInput if it is not a safetensors pipeline, or none that draws from a text alone,
    or `from_images`, Missing, TryAgain.
    """
    folder = configuration_folder(model)
    return folder, _read_model_facts(model, folder, from_images)


def _read_model_facts(model: ModelSettings, folder: Path, from_images: bool) -> ModelFacts:
    pipeline, index, paths = _read_model_index(model, folder)
    scheduler = read_config(folder, SCHEDULER_CONFIG)
    require_fitting_configuration(model, scheduler)
    require_known_scheduler(scheduler, model.id)
    draws_over = from_images and family_of(pipeline).image_to_image is not None
    reason = unsupported_reason(pipeline)
    if reason and not draws_over:
        raise BadInput(f"{model.id}: is a {pipeline}, which {reason}.")
    denoiser = read_denoiser_config(folder, index)
    vae = read_config(folder, "vae/config.json") if "vae" in index else {}
    side, multiple = _default_side_and_multiple(denoiser, vae)
    family = family_of(pipeline)
    side = family.default_size or side
    multiple = family.size_multiple or multiple
    if not (1 <= side <= MAX_SIDE and 1 <= multiple <= MAX_SIDE):
        raise BadInput(
            f"{model.id}: its configuration states no size of images. Choose another model."
        )
    return ModelFacts(
        digest=model_digest(model),
        pipeline=pipeline,
        width=side,
        height=side,
        size_multiple=multiple,
        own=read_own_settings(model, folder, index, denoiser),
        weights_bytes=_measure_weights(model, folder, paths),
    )


def _measure_weights(model: ModelSettings, folder: Path, paths: ModelPaths) -> int | None:
    """The memory that a model's loaded weights need; None if that cannot be read."""
    if checkpoint := checkpoint_file(model):
        return measure_weights(model, checkpoint.parent, [checkpoint.name])
    weights = sorted(path for path in paths if path.suffix == SAFETENSORS_SUFFIX)
    components = groupby(weights, lambda path: path.parent)
    loaded = [loaded_weights(list(files), model.variant) for _, files in components]
    return measure_weights(model, folder, [str(path) for files in loaded for path in files])


def configuration_folder(model: ModelSettings) -> Path:
    """A local folder with at least the model's small files: the model's own, or the hub's cache.

    That of a model in one file is what `model.config` names.
    """
    require_whole_checkpoint(model)
    reference = configuration_reference(model)
    if is_hub_id(reference.id):
        return download_configuration(reference)
    folder = Path(resolve_path(reference.id))
    with translate_errors(reference.id):
        if folder.is_file():
            raise BadInput(
                f"{reference.id}: is a file. Choose a diffusers folder, or a safetensors file."
            )
        if not folder.is_dir():
            raise Missing(f"{reference.id}: {_describe_absence(reference.id)}")
    if not (folder / MODEL_INDEX_FILE).is_file():
        raise BadInput(
            f"{reference.id}: has no model_index.json, so it is not a diffusers pipeline. "
            "Choose another folder."
        )
    return folder


def _describe_absence(name: str) -> str:
    if not name.startswith(BUNDLED_PREFIX):
        return "no such model folder. Write a folder, or a hub id as org/name."
    bundled = sorted(
        f"{BUNDLED_PREFIX}{path.parent.name}" for path in BUNDLED_FOLDER.glob("*/model_index.json")
    )
    return f"no such bundled model. Write {' or '.join(bundled)}."


def model_digest(model: ModelSettings, before_piece: BeforePiece = proceed) -> str:
    """The digest of a model's weights and of the variant that is loaded.

    `before_piece` is called before each piece that is read of a local model, and may raise.
    """
    file = checkpoint_file(model)
    if file is None:
        return weights_digest(model, model.variant, before_piece)
    with translate_errors(model.id):
        (sha256,) = hash_files([file], before_piece)
    config = weights_digest(configuration_reference(model), before_piece=before_piece)
    content = f"checkpoint {sha256}\nconfig {config}\n"
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


def _read_model_index(model: ModelSettings, folder: Path) -> tuple[str, Config, ModelPaths]:
    """The pipeline's class, its components and their files."""
    index = read_model_index(folder, model.id)
    pipeline = str(index["_class_name"])
    # Folders that are no components are skipped: the pipeline reads nothing from them.
    paths = [
        path for path in _list_files(model, folder) if isinstance(index.get(path.parts[0]), list)
    ]
    _refuse_pickles(model, paths)
    if model.variant:
        _require_variant(model, model.variant, paths)
    require_data_only(folder, model.id)
    if model.config is None and not is_hub_id(model.id):
        for path in weight_files(folder, model.variant):
            subject = f"{model.id}: {path.parent.name}"
            require_plain_weights(tensor_names(path, subject), subject)
    return pipeline, index, paths


def _require_variant(model: ModelSettings, variant: str, paths: ModelPaths) -> None:
    """Raise BadInput if none of a model's files is of the variant."""
    weights = [path.name for path in paths if path.suffix == ".safetensors"]
    if weights and not any(_is_variant(name, variant) for name in weights):
        raise BadInput(
            f"{model.id}: has no safetensors of the variant {variant}. "
            "Correct model.variant, or leave it out."
        )


def _refuse_pickles(model: ModelSettings, paths: ModelPaths) -> None:
    """Raise BadInput if a component has pickles and no safetensors."""
    safe_folders = {path.parent for path in paths if path.suffix == ".safetensors"}
    for path in sorted(paths):
        if path.suffix.lower() in PICKLE_SUFFIXES and path.parent not in safe_folders:
            raise BadInput(
                f"{model.id}: {path} is a pickle, which can run code. Convert it to safetensors."
            )


def loaded_files(folder: Path, model: ModelSettings) -> list[Path]:
    """The files in a model's folder that it is loaded from, no matter what else lies there.

    Raises BadInput, Missing, TryAgain.
    """
    weight_suffixes = {".safetensors", *PICKLE_SUFFIXES}
    files = list_files(folder)
    others = [folder / path for path in files if path.suffix.lower() not in weight_suffixes]
    with translate_errors(model.id):
        return [*weight_files(folder, model.variant), *others]


def weight_files(folder: Path, variant: str | None) -> list[Path]:
    """The safetensors in a model's folder that are loaded for a variant; None for the plain ones.

    The hub's cache may also hold other variants, and components of other pipelines. A component
    without files of the variant is loaded from its plain ones.

    Raises BadInput, Missing, TryAgain, OSError.
    """
    index = read_json(folder / MODEL_INDEX_FILE, str(folder))
    files: list[Path] = []
    for component in sorted(folder.iterdir()):
        if component.name in index:
            files += loaded_weights(sorted(component.glob("*.safetensors")), variant)
    return files


def loaded_weights(weights: Sequence[AnyPath], variant: str | None) -> list[AnyPath]:
    """A component's safetensors that are loaded for a variant; None for the plain ones."""
    plain = [path for path in weights if "." not in path.stem]
    of_variant = [path for path in weights if variant and _is_variant(path.name, variant)]
    return of_variant or plain


def _is_variant(name: str, variant: str) -> bool:
    """Say if a file is of a variant, by its name, as `model.fp16-00001-of-00002.safetensors`."""
    return any(mark in name for mark in (f".{variant}.", f".{variant}-"))


def _list_files(model: ModelSettings, folder: Path) -> ModelPaths:
    """The paths of the model's files within it, the weights included.

    Those of a configuration on the hub are not listed: no weights are fetched with it.
    """
    if model.config is not None and is_hub_id(model.config):
        return []
    if is_hub_id(model.id):
        return [PurePosixPath(name) for name in list_hub_files(model)]
    return list_files(folder)


def _default_side_and_multiple(denoiser: Config, vae: Config) -> tuple[int, int]:
    """The side of a default image, and what sizes must be a multiple of, both in pixels."""
    scale = _vae_scale_factor(vae)
    sample_size = denoiser.get("sample_size", DEFAULT_SAMPLE_SIZE)
    latent_side = sample_size if isinstance(sample_size, int) else DEFAULT_SAMPLE_SIZE
    # Transformers cut latents into patches, of which a side must be a whole number.
    latents_per_patch = max(_patch_size(denoiser), _packing_factor(denoiser, vae))
    return latent_side * scale, max(MIN_SIZE_MULTIPLE, scale * latents_per_patch)


def _patch_size(denoiser: Config) -> int:
    default = 2 if "all_patch_size" in denoiser else 1
    patch_size = denoiser.get("patch_size", default)
    return patch_size if isinstance(patch_size, int) else 2


def _packing_factor(denoiser: Config, vae: Config) -> int:
    """The side of the squares of latents that a pipeline packs into channels.

    FLUX does so, and its configuration does not state it as a patch size.
    """
    channels = denoiser.get("in_channels")
    latent_channels = vae.get("latent_channels")
    packed = isinstance(latent_channels, int) and channels == 4 * latent_channels
    return 2 if packed else 1


def _vae_scale_factor(vae: Config) -> int:
    blocks = vae.get("block_out_channels") or vae.get("encoder_block_out_channels")
    if not isinstance(blocks, list) or not 0 < len(blocks) <= MAX_VAE_BLOCKS:
        return DEFAULT_VAE_SCALE_FACTOR
    return 1 << (len(blocks) - 1)


def default_image_size(job: Job, facts: ModelFacts) -> tuple[int, int]:
    """Width and height, in pixels, of an image whose row states neither."""
    return job.defaults.width or facts.width, job.defaults.height or facts.height


def default_steps(job: Job, facts: ModelFacts, setting: str = "defaults") -> int:
    """The steps of an image whose row states none. Raises BadInput if nothing says them."""
    steps = job.defaults.steps or facts.own.steps
    if steps is None:
        raise BadInput(
            f"{job.model.id}: {facts.own.source}. Set {setting}.steps and {setting}.guidance."
        )
    return steps


def default_guidance(job: Job, facts: ModelFacts) -> float | None:
    """The guidance of an image whose row states none; None if the model reads no number."""
    guidance = job.defaults.guidance
    if guidance is None or (guidance <= NO_GUIDANCE and not facts.own.reads_guidance):
        return facts.own.guidance
    return guidance + 0.0  # never -0.0


def describe_defaults(job: Job, facts: ModelFacts) -> str:
    """Describe the default steps and guidance, and their sources."""
    steps = pluralize(default_steps(job, facts), "step")
    number = default_guidance(job, facts)
    guidance = "no guidance" if number is None else f"guidance {number:g}"
    if number is None and facts.own.call.schedule_steps is not None:
        guidance = "its own schedule of guidance"
    if "steps" in job.swept:
        steps = "steps of the sweep"
    if "guidance" in job.swept:
        guidance = "guidance of the sweep"
    set_by_job = {*job.swept, *(name for name, value in job.defaults if value is not None)}
    names = ("steps", "guidance")
    sources = ["the job" if name in set_by_job else facts.own.source for name in names]
    if sources[0] == sources[1] or number is None:
        return f"{steps}, {guidance} ({sources[0]})"
    return f"{steps} ({sources[0]}), {guidance} ({sources[1]})"
