"""Facts about a model that a plan records, and the check that it is still that model."""

import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Self, TypeVar

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.job.columns import MAX_SIDE
from imagekiln.steps.job.fields import NO_MODEL_ID
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.checkpoints import (
    checkpoint_file,
    configuration_reference,
    is_gguf,
    require_fitting_configuration,
    require_plain_weights,
    require_whole_checkpoint,
)
from imagekiln.steps.models.component_files import (
    CONFIG_FILE,
    MODEL_INDEX_FILE,
    SCHEDULER_CONFIG,
    Config,
    denoiser_component,
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
    require_undamaged,
)
from imagekiln.steps.models.own_settings import NO_GUIDANCE, OwnSettings, read_own_settings
from imagekiln.steps.models.placement import WeightSizes, component_kind
from imagekiln.steps.models.quantization import quantization_method
from imagekiln.steps.models.weights import (
    PICKLE_SUFFIXES,
    SAFETENSORS_SUFFIX,
    BeforePiece,
    file_sha256,
    proceed,
    tensor_names,
)
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import resolve_path

DEFAULT_SAMPLE_SIZE = 128  # of latents, if a configuration states none
DEFAULT_VAE_SCALE_FACTOR = 8
MAX_VAE_BLOCKS = 16
MIN_SIZE_MULTIPLE = 8  # pipelines require a multiple of 8 with any VAE
WEIGHT_SUFFIXES = {SAFETENSORS_SUFFIX, *PICKLE_SUFFIXES}
AnyPath = TypeVar("AnyPath", bound=PurePath)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model that a plan freezes. Sizes are in pixels.

    `weights` are the bytes that the loaded weights take; None if a header of theirs could not be
    read. `quantization` is the method by which the denoiser's weights are quantized.
    """

    digest: str
    pipeline: str
    width: int
    height: int
    size_multiple: int
    own: OwnSettings
    quantization: str | None = None
    weights: WeightSizes | None = field(default=None, compare=False)  # the digest identifies them


# Steps and guidance of images that are not drawn are those of their source.
NO_MODEL_FACTS = ModelFacts(
    digest=NO_MODEL_ID,
    pipeline=NO_MODEL_ID,
    width=1,
    height=1,
    size_multiple=1,
    own=OwnSettings(1, None, "no model"),
)


def locate_model(model: ModelSettings, *, from_images: bool = False) -> tuple[Path, ModelFacts]:
    """Locate the model's configuration; return its folder and the facts that it states.

    Raises BadInput if it is not a safetensors pipeline that needs only a prompt, or an input image
    if `from_images`, Missing, TryAgain.
    """
    if model.id == NO_MODEL_ID:
        return Path(os.devnull), NO_MODEL_FACTS  # no folder, and so without configurations
    folder = configuration_folder(model)
    index = read_model_index(folder, model.id)
    weights = [*map(str, _list_weights(model, folder, index))]
    require_data_only(folder, model.id)
    require_fitting_configuration(model, read_config(folder, SCHEDULER_CONFIG))
    pipeline = str(index["_class_name"])
    family = family_of(pipeline)
    reason = unsupported_reason(pipeline)
    if reason and not (from_images and family.image_to_image):
        raise BadInput(f"{model.id}: is a {pipeline}, which {reason}.")
    denoiser = read_denoiser_config(folder, index)
    is_in_gguf = is_gguf(checkpoint_file(model))
    quantization = "gguf" if is_in_gguf else quantization_method(denoiser)
    quantized = [name for name in weights if _is_quantized(folder, PurePath(name))]
    side, multiple = _default_side_and_multiple(denoiser, read_config(folder, "vae/config.json"))
    side = family.default_size or side
    multiple = family.size_multiple or multiple
    if not (1 <= side <= MAX_SIDE and 1 <= multiple <= MAX_SIDE):
        raise BadInput(
            f"{model.id}: its configuration states no size of images. Choose another model."
        )
    return folder, ModelFacts(
        digest=model_digest(model),
        pipeline=pipeline,
        width=side,
        height=side,
        size_multiple=multiple,
        own=read_own_settings(model, folder, index, denoiser),
        quantization=quantization,
        weights=measure_weights(model, folder, weights, quantized),
    )


def configuration_folder(model: ModelSettings) -> Path:
    """Return a local folder with at least the model's small files, downloaded if need be.

    For a single-file model, it is the folder of `model.config`.
    """
    require_whole_checkpoint(model)
    reference = configuration_reference(model)
    if is_hub_id(reference.id):
        return download_configuration(reference)
    folder = Path(resolve_path(reference.id))
    with translate_errors(reference.id):
        if not folder.exists():
            raise Missing(
                f"{reference.id}: no such model folder. Write a folder, or a hub id as org/name."
            )
        if not (folder / MODEL_INDEX_FILE).is_file():
            raise BadInput(
                f"{reference.id}: has no model_index.json, so it is not a diffusers pipeline. "
                "Choose another folder, or a safetensors file."
            )
    return folder


def _list_weights(model: ModelSettings, folder: Path, index: Config) -> list[PurePosixPath]:
    """List the files that a model is loaded from: on the hub, in its folder, or its one file.

    Raises BadInput if some are pickles, if none is of the variant, or if some are quantized and
    their configuration does not say so.
    """
    checkpoint = checkpoint_file(model)
    if checkpoint is None:
        return _list_networks(model, folder, index)
    weights = [PurePosixPath(checkpoint.absolute())]
    if is_gguf(checkpoint):
        others = {name: value for name, value in index.items() if name != denoiser_component(index)}
        return [*weights, *_list_networks(model, folder, others)]
    return [*weights, *_list_encoders(checkpoint, folder)]


def _list_networks(model: ModelSettings, folder: Path, index: Config) -> list[PurePosixPath]:
    reference = configuration_reference(model)
    is_on_hub = is_hub_id(reference.id)
    files = [*map(PurePosixPath, list_hub_files(reference))] if is_on_hub else list_files(folder)
    # Folders that are not components are skipped, since the pipeline does not read them.
    paths = sorted(path for path in files if isinstance(index.get(path.parts[0]), list))
    weights = [path for path in paths if path.suffix == SAFETENSORS_SUFFIX]
    safe_folders = {path.parent for path in weights}
    for path in paths:
        if path.suffix.lower() in PICKLE_SUFFIXES and path.parent not in safe_folders:
            raise BadInput(
                f"{model.id}: {path} is a pickle, which can run code. Convert it to safetensors."
            )
    loaded = loaded_weights(weights, model.variant)
    if model.variant and weights and loaded == loaded_weights(weights, None):
        raise BadInput(
            f"{model.id}: has no safetensors of the variant {model.variant}. "
            "Correct model.variant, or leave it out."
        )
    if lost := safe_folders - {path.parent for path in loaded}:
        raise BadInput(
            f"{model.id}: {min(lost)} has only weights of a variant, as fp16 is one. "
            "Set model.variant."
        )
    if not is_on_hub:
        for path in loaded:
            if not _is_quantized(folder, path):
                subject = f"{model.id}: {path.parent.name}"
                require_plain_weights(tensor_names(folder / path, subject), subject)
    return loaded


def _is_quantized(folder: Path, weights: PurePath) -> bool:
    """Return whether the configuration beside a weights file says that it is quantized."""
    config = read_config(folder, str(weights.with_name(CONFIG_FILE)))
    return quantization_method(config) is not None


def _list_encoders(checkpoint: Path, folder: Path) -> list[PurePosixPath]:
    """List the weights of text encoders in the folder of a single-file model that has none."""
    names = tensor_names(checkpoint, str(checkpoint))
    if any(component_kind(name) == "texts" for name in names):
        return []
    files = [path for path in list_files(folder) if path.suffix == SAFETENSORS_SUFFIX]
    encoders = [path for path in files if component_kind(path.parts[0]) == "texts"]
    return loaded_weights(encoders, None)


def loaded_weights(weights: Iterable[AnyPath], variant: str | None) -> list[AnyPath]:
    """Select the safetensors that are loaded for a variant, or the plain ones for None.

    A component without files of the variant is loaded from its plain ones. Files of a variant are
    named `model.fp16.safetensors` or `model.fp16-00001-of-00002.safetensors`.
    """
    marks = (f".{variant}.", f".{variant}-")
    by_folder = defaultdict[PurePath, list[AnyPath]](list)
    for path in weights:
        by_folder[path.parent].append(path)
    loaded: list[AnyPath] = []
    for files in by_folder.values():
        own = []
        if variant is not None:
            own = [path for path in files if any(mark in path.name for mark in marks)]
        plain = [path for path in files if "." not in path.stem]
        loaded += own or plain
    return loaded


def model_digest(model: ModelSettings, before_piece: BeforePiece = proceed) -> str:
    """Compute the digest of a model's weights and of the variant that is loaded.

    `before_piece` is called before each piece of a local model is read, and may raise to cancel.
    """
    if model.id == NO_MODEL_ID:
        return NO_MODEL_FACTS.digest
    file = checkpoint_file(model)
    if file is None:
        return weights_digest(model, model.variant, before_piece)
    with translate_errors(model.id):
        sha256 = file_sha256(file, before_piece)
    config = weights_digest(configuration_reference(model), before_piece=before_piece)
    content = f"checkpoint {sha256}\nconfig {config}\n"
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


class WeightsCheck:
    """A background check that a model's files match its planned digest.

    It also brings the files into the page cache.
    """

    def __init__(self, model: ModelSettings, digest: str) -> None:
        """Begin to hash a local model. A hub model is identified by its commit, without reading."""
        self._model = model
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(1, "weights-check")
        self._checks: list[Future[None]] = []
        self._begin(partial(self._require_digest, digest))

    def __enter__(self) -> Self:
        """Return the check."""
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel the checks that are still reading."""
        self._closed.set()
        self._pool.shutdown()

    def require_planned(self) -> None:
        """Wait for the checks to finish.

        Raises BadInput if the files are not the planned ones, Missing, TryAgain.
        """
        for check in self._checks:
            check.result()

    def add_downloaded(self, folder: Path) -> None:
        """Begin to check a downloaded model in the hub's cache for damage."""
        self._begin(partial(self._require_undamaged, folder))

    def _begin(self, check: Callable[[], None]) -> None:
        self._checks.append(self._pool.submit(check))

    def _require_digest(self, digest: str) -> None:
        if model_digest(self._model, self._raise_if_closed) != digest:
            raise BadInput(
                f"{self._model.id}: is not the model that the run was planned with. "
                "Restore it, or plan anew."
            )

    def _require_undamaged(self, folder: Path) -> None:
        """Check only the files that the model is loaded from, not others in the cache."""
        index = read_json(folder / MODEL_INDEX_FILE, self._model.id)
        weights = []
        others = []
        for path in list_files(folder):
            if path.suffix.lower() not in WEIGHT_SUFFIXES:
                others.append(path)
            elif path.suffix == SAFETENSORS_SUFFIX and path.parts[0] in index:
                weights.append(path)
        used = loaded_weights(weights, self._model.variant)
        paths = map(folder.joinpath, [*used, *others])
        require_undamaged(self._model.id, paths, self._raise_if_closed)

    def _raise_if_closed(self) -> None:
        if self._closed.is_set():
            raise KilnError("the check of the model's files was closed")


def _default_side_and_multiple(denoiser: Config, vae: Config) -> tuple[int, int]:
    """Return the side of a default image and the multiple for sizes, both in pixels."""
    scale = DEFAULT_VAE_SCALE_FACTOR
    blocks = vae.get("block_out_channels") or vae.get("encoder_block_out_channels")
    if isinstance(blocks, list) and 0 < len(blocks) <= MAX_VAE_BLOCKS:
        scale = 1 << (len(blocks) - 1)
    latent_side = denoiser.get("sample_size")
    if not isinstance(latent_side, int):
        latent_side = DEFAULT_SAMPLE_SIZE
    # Transformers split latents into patches, so a side must be a multiple of the patch.
    default_patch = 2 if "all_patch_size" in denoiser else 1
    patch = denoiser.get("patch_size", default_patch)
    if not isinstance(patch, int):
        patch = 2
    channels = vae.get("latent_channels")
    if isinstance(channels, int) and denoiser.get("in_channels") == 4 * channels:
        patch = max(2, patch)  # FLUX packs 2 x 2 latents without stating a patch
    side = latent_side * scale
    multiple = max(MIN_SIZE_MULTIPLE, scale * patch)
    return side, multiple


def default_image_size(job: Job, facts: ModelFacts) -> tuple[int, int]:
    """Return the default width and height in pixels."""
    return job.defaults.width or facts.width, job.defaults.height or facts.height


def default_steps(job: Job, facts: ModelFacts, setting: str = "defaults") -> int:
    """Return the default steps. Raises BadInput if neither job nor model states them."""
    steps = job.defaults.steps or facts.own.steps
    if steps is None:
        raise BadInput(
            f"{job.model.id}: {facts.own.source}. Set {setting}.steps and {setting}.guidance."
        )
    return steps


def default_guidance(job: Job, facts: ModelFacts) -> float | None:
    """Return the default guidance; None if the model reads none or has its own schedule."""
    guidance = job.defaults.guidance
    if guidance is None or (guidance <= NO_GUIDANCE and not facts.own.reads_guidance):
        return facts.own.guidance
    return guidance + 0.0  # never -0.0


def describe_defaults(job: Job, facts: ModelFacts) -> str:
    """Describe the default steps and guidance, and their sources; empty without a model."""
    if not job.draws:
        return ""
    number = default_guidance(job, facts)
    texts = {
        "steps": pluralize(default_steps(job, facts), "step"),
        "guidance": "no guidance" if number is None else f"guidance {number:g}",
    }
    texts |= {name: f"{name} of the sweep" for name in texts if name in job.swept}
    is_set = {*job.swept, *(name for name, value in job.defaults if value is not None)}
    steps, guidance = (
        f"{text} ({'the job' if name in is_set else facts.own.source})"
        for name, text in texts.items()
    )
    return f"{steps}, {guidance}"
