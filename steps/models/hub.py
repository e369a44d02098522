"""Models on the Hugging Face hub: pinned commits, verified files in its cache, error messages.

The hub's client only checks file sizes. In the cache, files are named by their hash, and the folder
of a commit has links to them: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, explained_by
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.placement import WeightSizes, measure_tensors
from imagekiln.steps.models.weights import (
    GGUF_SUFFIX,
    READER_THREADS,
    BeforePiece,
    is_weights_file,
    iter_pieces,
    proceed,
)
from imagekiln.steps.storage.failures import error_reason, explain_storage_error, translate_errors
from imagekiln.steps.storage.uri import BUNDLED_PREFIX

LAYERS = 16  # of a GGUF file, of which none is larger than this share
T = TypeVar("T")
Explanation = tuple[type[KilnError], str]
CONFIGURATION_PATTERNS = [
    "*.json",
    "*/merges.txt",
    "*/spiece.model",
    "*/tokenizer.model",
]
DEFAULT_REVISION = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
FILES_AT_ONCE = 8
NO_MODEL = (Missing, "no such model on the hub, or no access. Check {setting}.id and HF_TOKEN.")
NO_FILE = (Missing, "has no such file at that revision. Correct {setting}.")
NO_ACCESS = (BadInput, "the hub refused access. Check HF_TOKEN.")
UNREACHABLE = (TryAgain, "the hub could not be reached. Run again, or set {setting} to a path.")
UNUSABLE_SETTINGS = (
    BadInput,
    "the hub's client cannot use its settings. Correct HF_TOKEN, HF_ENDPOINT or the variables of "
    "the proxy.",
)
# By status code or class name, since the client is slow to import. The last are httpx's errors for
# an invalid URL or header.
HUB_ERRORS: dict[str | int, Explanation] = {
    "GatedRepoError": (BadInput, "is gated. Accept its terms on the hub and set HF_TOKEN."),
    "RevisionNotFoundError": (Missing, "has no revision {revision}. Correct {setting}.revision."),
    "RepositoryNotFoundError": NO_MODEL,
    "HFValidationError": NO_MODEL,
    "EntryNotFoundError": NO_FILE,
    "RemoteEntryNotFoundError": NO_FILE,
    "DisabledRepoError": (BadInput, "is disabled on the hub. Choose another model."),
    "OfflineModeIsEnabled": (
        BadInput,
        "is not in this machine's cache, and HF_HUB_OFFLINE is set. Fill the model cache "
        "(`imagekiln fetch RUN`, `imagekiln rewrite JOB --fetch`), or unset it.",
    ),
    401: NO_ACCESS,
    403: NO_ACCESS,
    429: (
        TryAgain,
        "the hub has too many requests from here (429). Run again later. Set HF_TOKEN, which "
        "raises the limit; on a cluster, use a profile with a cache.",
    ),
    "InvalidURL": UNUSABLE_SETTINGS,
    "UnsupportedProtocol": UNUSABLE_SETTINGS,
    "LocalProtocolError": UNUSABLE_SETTINGS,
}
# Errors raised if neither the hub nor the cache has the file, unless another error is their cause.
UNANSWERED_ERRORS = dict.fromkeys(
    (
        *("FileMetadataError", "IncompleteSnapshotError"),
        *("LocalEntryNotFoundError", "RevisionResolutionError"),
    ),
    UNREACHABLE,
)
ABANDONED_SECONDS = 3600.0  # the hub's client ends a download after minutes of silence
SHA256_LENGTH, SHA1_LENGTH = 64, 40  # of file names; files in LFS have the former


def is_hub_id(name: str) -> bool:
    """Return whether a model's name is a hub id: org/name, without a local folder of that name."""
    has_two_parts = name.count("/") == 1
    is_path = name.startswith((BUNDLED_PREFIX, ".", "/", "~")) or is_weights_file(name)
    return has_two_parts and not is_path and not Path(name).exists()


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a full commit hash, and not a branch or tag."""
    return revision is not None and COMMIT.fullmatch(revision) is not None


def resolve_commit(reference: HubReference, setting: str) -> str:
    """Resolve the branch or tag of the setting's repository, or its default branch, to a commit.

    If the hub cannot be reached, returns the commit that this machine last fetched by that name.
    Raises BadInput, Missing, TryAgain.
    """
    from huggingface_hub import HfApi

    revision = reference.revision or DEFAULT_REVISION
    named = reference.model_copy(update={"revision": revision})
    resolve = partial(HfApi().resolve_revision, named.id, revision=revision)
    return ask_hub(named, resolve, setting).resolved


def download_configuration(model: HubReference) -> Path:
    """Download a model's small files; return their folder. Raises BadInput, Missing, TryAgain."""
    folder = download_snapshot(model, CONFIGURATION_PATTERNS, "model")
    if not (folder / "model_index.json").is_file():
        raise BadInput(
            f"{model.id}: has no model_index.json, so it is not a diffusers pipeline. "
            "Choose another model."
        )
    return folder


def download_file(reference: HubReference, name: str, setting: str) -> Path:
    """Download one file of the setting's repository. Raises BadInput, Missing, TryAgain."""
    from huggingface_hub import hf_hub_download  # slow to import, and local models do not need it

    file = _download(reference, setting, hf_hub_download, filename=name)
    require_undamaged(reference.id, [file])
    return file


def download_snapshot(reference: HubReference, patterns: list[str], setting: str) -> Path:
    """Download the matching files; return their folder. Raises BadInput, Missing, TryAgain."""
    from huggingface_hub import snapshot_download

    folder = _download(reference, setting, snapshot_download, allow_patterns=patterns)
    files = {file for pattern in patterns for file in folder.rglob(pattern)}
    require_undamaged(reference.id, sorted(files))
    return folder


def _download(
    reference: HubReference, setting: str, download: Callable[..., str], **options: object
) -> Path:
    if not is_commit(reference.revision):
        raise BadInput(
            f"{setting}.revision is not a commit: pin {reference.id} to one, 40 hexadecimal digits."
        )
    request = partial(download, reference.id, revision=reference.revision, **options)
    return Path(ask_hub(reference, request, setting))


def list_hub_files(model: HubReference) -> tuple[str, ...]:
    """List the names of a model's files, including weights; empty if the hub cannot be reached."""
    from huggingface_hub import HfApi

    # A cached model needs no hub.
    with suppress(KilnError), _translate_hub_errors(model):
        return tuple(HfApi().list_repo_files(model.id, revision=model.revision))
    return ()


def measure_weights(
    model: ModelSettings, folder: Path, names: Sequence[str], quantized: Collection[str] = ()
) -> WeightSizes | None:
    """Compute the bytes that the weights in these files of a model take once they are loaded.

    Reads headers only, on the hub if the folder lacks a file. None if a header cannot be read.
    """
    from huggingface_hub import HfApi, errors, parse_local_safetensors_file_metadata

    float_bytes = 4 if model.dtype == "float32" else 2

    def measure(name: str) -> WeightSizes:
        if name.lower().endswith(GGUF_SUFFIX):
            size = Path(name).stat().st_size
            return WeightSizes(denoiser=size, largest=size // LAYERS)
        if (folder / name).is_file():
            header = parse_local_safetensors_file_metadata(folder / name)
        else:
            header = HfApi().parse_safetensors_file_metadata(
                model.config or model.id, name, revision=model.revision
            )
        component = None if Path(name).is_absolute() else Path(name).parts[0]
        return measure_tensors(
            component, header.tensors, float_bytes, keeps_8_bits=name in quantized
        )

    with (
        suppress(KilnError, errors.SafetensorsParsingError),
        _translate_hub_errors(model),
        ThreadPoolExecutor(FILES_AT_ONCE, "weights-size") as pool,
    ):
        return sum(pool.map(measure, names), WeightSizes()) if names else None
    return None


def ask_hub(reference: HubReference, request: Callable[[], T], setting: str = "model") -> T:
    """Send a request about the setting's repository. Raises BadInput, Missing, TryAgain."""
    _remove_abandoned_downloads(reference.id)
    with _translate_hub_errors(reference, setting):
        return request()


def _remove_abandoned_downloads(name: str) -> None:
    """Remove the files of killed downloads, which no later download resumes."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
    for file in folder.glob("blobs/*.incomplete"):
        with suppress(OSError):
            if time.time() - file.lstat().st_mtime > ABANDONED_SECONDS:
                file.unlink()


def _translate_hub_errors(
    reference: HubReference, setting: str = "model"
) -> AbstractContextManager[None]:
    """Convert errors of the hub's client in the block to KilnError, about the setting's model."""
    return explained_by(partial(_explain_hub_error, reference, setting))


def _explain_hub_error(reference: HubReference, setting: str, error: Exception) -> KilnError | None:
    name = reference.id
    known = filter(None, map(_find_explanation, _iter_causes(error)))
    if explanation := next(known, UNANSWERED_ERRORS.get(type(error).__name__)):
        kind, sentence = explanation
        return kind(f"{name}: {sentence.format(revision=reference.revision, setting=setting)}")
    if not isinstance(error, OSError):
        return None
    if error.errno is not None:
        return explain_storage_error(str(error.filename or name), error)
    return BadInput(f"{name}: {error_reason(error)}. Choose another model.")


def _iter_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes, from before the client or diffusers tried the cache."""
    while error is not None:
        yield error
        error = error.__cause__


def _find_explanation(error: BaseException) -> Explanation | None:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    kind = type(error)
    is_of_network = isinstance(error, ConnectionError) or kind.__module__.startswith("httpx")
    failed = UNREACHABLE if is_of_network or status else None
    return HUB_ERRORS.get(kind.__name__) or HUB_ERRORS.get(status or 0, failed)


def require_undamaged(
    name: str, paths: Iterable[Path], before_piece: BeforePiece = proceed
) -> None:
    """Remove damaged files of the model `name` from the cache, and raise TryAgain if any was bad.

    Checks only links into the cache. Also raises it for lost files. `before_piece` may raise to
    cancel.
    """
    links = [path for path in paths if path.is_symlink()]
    try:
        with translate_errors(name), ThreadPoolExecutor(READER_THREADS, "weights") as pool:
            wholes = list(pool.map(partial(_is_whole, before_piece=before_piece), links))
    except Missing as error:
        raise TryAgain(
            f"{name}: another process removed a file of it from this machine's cache. Run again, "
            "which downloads it again."
        ) from error
    damaged = [link for link, is_whole in zip(links, wholes, strict=True) if not is_whole]
    if damaged:
        for link in damaged:
            link.resolve().unlink(missing_ok=True)
            link.unlink(missing_ok=True)
        raise TryAgain(
            f"{name}: {damaged[0].name} was damaged in this machine's cache, and was removed. "
            "Run again, which downloads it again."
        )


def _is_whole(link: Path, before_piece: BeforePiece) -> bool:
    """Return whether a file's content matches its name, if the name is a hash."""
    content = link.resolve()
    digests = [hashlib.sha256()]
    if len(content.name) == SHA1_LENGTH:
        header = b"blob %d\0" % content.stat().st_size
        # With git's header, or without it as some mirrors do.
        digests = [hashlib.sha1(start, usedforsecurity=False) for start in (header, b"")]
    elif len(content.name) != SHA256_LENGTH:
        return True
    for piece in iter_pieces(content, before_piece):
        for digest in digests:
            digest.update(piece)
    return content.name in [digest.hexdigest() for digest in digests]
