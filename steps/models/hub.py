"""Models on the Hugging Face hub: pinned commits, files in its cache, failures as sentences.

The hub's client compares lengths only. In the cache, a file is named by its hash, and the folder
of a commit has links to such files: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypeVar

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, explained_by
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.weights import (
    BeforePiece,
    is_weights_file,
    iter_pieces,
    map_files,
    proceed,
)
from imagekiln.steps.storage.failures import error_reason, explain_storage_error, translate_errors
from imagekiln.steps.storage.uri import BUNDLED_PREFIX

T = TypeVar("T")
CONFIGURATION_PATTERNS = [
    "*.json",
    "*/*.json",
    "*/merges.txt",
    "*/spiece.model",
    "*/tokenizer.model",
]
DEFAULT_REVISION = "main"
LANGUAGE_MODEL_SETTING = "rewrite.model"
COMMIT = re.compile(r"[0-9a-f]{40}")
ACCESS_DENIED_STATUSES = {401, 403}
RATE_LIMIT_STATUS = 429
BUSY_STATUSES = {RATE_LIMIT_STATUS, 500, 502, 503, 504}
MAX_ATTEMPTS = 4
FILES_AT_ONCE = 8
FIRST_WAIT_SECONDS = 5.0
# Errors of httpx for an address or a header that it cannot send.
CLIENT_SETTING_ERRORS = {"InvalidURL", "UnsupportedProtocol", "LocalProtocolError"}
NO_MODEL = (Missing, "no such model on the hub, or no access. Check {id_setting} and HF_TOKEN.")
NO_FILE = (Missing, "has no such file at that revision. Correct {file_setting}.")
FETCH_MODELS = "imagekiln fetch RUN"
FETCH_LANGUAGE_MODEL = "imagekiln rewrite JOB --fetch"
# Keyed by name, since the client is slow to import.
HUB_ERRORS: dict[str, tuple[type[KilnError], str]] = {
    "GatedRepoError": (BadInput, "is gated. Accept its terms on the hub and set HF_TOKEN."),
    "RevisionNotFoundError": (Missing, "has no revision {revision}. Correct {setting}.revision."),
    "RepositoryNotFoundError": NO_MODEL,
    "HFValidationError": NO_MODEL,
    "EntryNotFoundError": NO_FILE,
    "RemoteEntryNotFoundError": NO_FILE,
    "DisabledRepoError": (BadInput, "is disabled on the hub. Choose another model."),
    "OfflineModeIsEnabled": (
        BadInput,
        "is not in this machine's cache, and HF_HUB_OFFLINE is set. "
        "Fill the model cache: `{command}`. Or unset it.",
    ),
}
ABANDONED_SECONDS = 3600.0  # the hub's client ends a download after minutes of silence
SHA256_NAME = re.compile(r"[0-9a-f]{64}")  # of large files, which are in LFS
SHA1_NAME = re.compile(r"[0-9a-f]{40}")


def download_configuration(model: HubReference) -> Path:
    """The model's small files, in the hub's cache. Raises BadInput, Missing, TryAgain."""
    folder = download_snapshot(model, CONFIGURATION_PATTERNS, "model")
    if not (folder / "model_index.json").is_file():
        raise BadInput(
            f"{model.id}: has no model_index.json, so it is not a diffusers pipeline. "
            "Choose another model."
        )
    return folder


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a whole commit, which never changes, and not a branch or tag."""
    return revision is not None and COMMIT.fullmatch(revision) is not None


def resolve_commit(reference: HubReference, setting: str) -> str:
    """The commit of what `setting` names, by its branch or tag, or else of the default branch.

    If the hub cannot be reached, it is the one that this machine last fetched by that name.
    Raises BadInput, Missing, TryAgain.
    """
    from huggingface_hub import HfApi

    named = reference.model_copy(update={"revision": reference.revision or DEFAULT_REVISION})

    return ask_hub(
        named,
        lambda: HfApi().resolve_revision(named.id, revision=named.revision).resolved,
        setting,
    )


def download_file(reference: HubReference, name: str, setting: str) -> Path:
    """One file of what `setting` names, in the hub's cache. Raises BadInput, Missing, TryAgain."""
    _require_revision(reference, setting)
    from huggingface_hub import hf_hub_download  # slow to import, and local models do not need it

    download = partial(hf_hub_download, reference.id, name, revision=reference.revision)
    file = Path(ask_hub(reference, download, setting))
    require_undamaged(reference.id, [file])
    return file


def download_snapshot(reference: HubReference, patterns: list[str], setting: str) -> Path:
    """The matching files' folder in the hub's cache. Raises BadInput, Missing, TryAgain."""
    _require_revision(reference, setting)
    from huggingface_hub import snapshot_download

    download = partial(
        snapshot_download, reference.id, revision=reference.revision, allow_patterns=patterns
    )
    folder = Path(ask_hub(reference, download, setting))
    _require_undamaged(reference, folder, patterns)
    return folder


def require_undamaged_configuration(model: HubReference) -> None:
    """Raise what `require_undamaged` does of a model's small files, as far as they are cached."""
    from huggingface_hub import try_to_load_from_cache

    index = try_to_load_from_cache(model.id, "model_index.json", revision=model.revision)
    if isinstance(index, str):
        _require_undamaged(model, Path(index).parent, CONFIGURATION_PATTERNS)


def _require_undamaged(reference: HubReference, folder: Path, patterns: list[str]) -> None:
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    matching = [
        path
        for name, path in paths.items()
        if path.is_file() and any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    require_undamaged(reference.id, matching)


def list_hub_files(model: HubReference) -> tuple[str, ...]:
    """The names of the model's files, weights included; none if the hub cannot be reached."""
    from huggingface_hub import HfApi

    # A cached model needs no hub.
    with suppress(KilnError), translate_hub_errors(model):
        return tuple(HfApi().list_repo_files(model.id, revision=model.revision))
    return ()


def measure_weights(model: ModelSettings, folder: Path, names: Sequence[str]) -> int | None:
    """The bytes that the weights in these files of a model need once they are loaded.

    Reads headers only, on the hub if the folder lacks a file. None if one cannot be read.
    """
    from huggingface_hub import HfApi, errors, parse_local_safetensors_file_metadata

    float_bytes = 4 if model.dtype == "float32" else 2

    def measure(name: str) -> int:
        if (folder / name).is_file():
            header = parse_local_safetensors_file_metadata(folder / name)
        else:
            header = HfApi().parse_safetensors_file_metadata(
                model.id, name, revision=model.revision
            )
        # Floats of all sizes are loaded in the model's dtype; there are few other numbers.
        counts = header.parameter_count.items()
        return sum(count * (float_bytes if "F" in kind else 1) for kind, count in counts)

    with (
        suppress(KilnError, errors.SafetensorsParsingError),
        translate_hub_errors(model),
        ThreadPoolExecutor(FILES_AT_ONCE, "weights-size") as pool,
    ):
        return sum(pool.map(measure, names)) or None
    return None


def ask_hub(reference: HubReference, request: Callable[[], T], setting: str = "model") -> T:
    """Send a request to the hub, again a few times if the hub is busy.

    The client retries only some requests, and all pods at once. Raises BadInput, Missing, TryAgain.
    """
    remove_abandoned_downloads(reference.id)
    with translate_hub_errors(reference, setting):
        for attempt in range(1, MAX_ATTEMPTS):
            try:
                return request()
            except Exception as error:
                response = getattr(_hub_cause(error), "response", None)
                if getattr(response, "status_code", None) not in BUSY_STATUSES:
                    raise
            spread = random.uniform(1, 1.5)  # noqa: S311  # no secret: it only keeps pods apart
            time.sleep(FIRST_WAIT_SECONDS * 2 ** (attempt - 1) * spread)
        return request()


def translate_hub_errors(
    reference: HubReference, setting: str = "model"
) -> AbstractContextManager[None]:
    """Turn what the hub's client raises inside into a sentence about what `setting` names."""
    return explained_by(partial(_explain_hub_error, reference, setting))


def _require_revision(reference: HubReference, setting: str) -> None:
    """Raise BadInput if what `setting` names is not pinned to a commit."""
    if not is_commit(reference.revision):
        raise BadInput(
            f"{setting}.revision is not a commit: pin {reference.id} to one, 40 hexadecimal digits."
        )


def _explain_hub_error(reference: HubReference, setting: str, error: Exception) -> KilnError | None:
    from huggingface_hub import errors

    error = _hub_cause(error)
    name = reference.id
    id_setting = _id_setting(reference, setting)
    if explanation := HUB_ERRORS.get(type(error).__name__):
        kind, sentence = explanation
        is_named = hasattr(reference, "weight_name")
        explained = sentence.format(
            revision=reference.revision,
            setting=setting,
            id_setting=id_setting,
            command=FETCH_LANGUAGE_MODEL if setting == LANGUAGE_MODEL_SETTING else FETCH_MODELS,
            file_setting=f"{setting}.weight_name" if is_named else id_setting,
        )
        return kind(f"{name}: {explained}")
    if isinstance(error, errors.HfHubHTTPError):
        refusal = _explain_status(name, error.response.status_code)
        if refusal is not None:
            return refusal
    if type(error).__name__ in CLIENT_SETTING_ERRORS:
        return BadInput(
            f"{name}: the hub's client cannot use its settings. Correct HF_TOKEN, HF_ENDPOINT or "
            "the variables of the proxy."
        )
    if isinstance(error, OSError) and error.errno is not None:
        return explain_storage_error(str(error.filename or name), error)
    unanswered = errors.HfHubHTTPError | errors.LocalEntryNotFoundError | errors.FileMetadataError
    if isinstance(error, unanswered) or _is_network_error(error):
        return TryAgain(
            f"{name}: the hub could not be reached. Run again, or set {id_setting} to a local path."
        )
    if isinstance(error, OSError):
        return BadInput(f"{name}: {error_reason(error)}. Choose another model.")
    return None


def _explain_status(name: str, status: int) -> KilnError | None:
    if status in ACCESS_DENIED_STATUSES:
        return BadInput(f"{name}: the hub refused access ({status}). Check HF_TOKEN.")
    if status == RATE_LIMIT_STATUS:
        return TryAgain(
            f"{name}: the hub has too many requests from here (429). Run again later. "
            "Set HF_TOKEN, which raises the limit; on a cluster, use a profile with a cache."
        )
    return None


def _id_setting(reference: HubReference, setting: str) -> str:
    """The setting that holds the id; of a model in one file, that of its configuration."""
    is_configuration = setting == "model" and type(reference) is HubReference
    return "model.config" if is_configuration else f"{setting}.id"


def _hub_cause(error: Exception) -> Exception:
    """The first failure, before the client or diffusers looked into the cache."""
    from huggingface_hub import errors

    cause = error.__cause__
    from_cache = errors.LocalEntryNotFoundError | errors.RevisionResolutionError
    if isinstance(error, from_cache) and isinstance(cause, Exception):
        return cause
    if type(error) is not OSError or not isinstance(cause, Exception):  # not diffusers' own
        return error
    of_hub = errors.HfHubHTTPError | errors.OfflineModeIsEnabled
    return cause if isinstance(cause, of_hub) or _is_network_error(cause) else error


def _is_network_error(error: Exception) -> bool:
    return isinstance(error, ConnectionError) or type(error).__module__.startswith("httpx")


def model_folder(name: str) -> str:
    """The folder of a hub's model in the cache."""
    return f"models--{name.replace('/', '--')}"


def remove_abandoned_downloads(name: str) -> None:
    """Remove the files of killed downloads: no later download resumes them."""
    from huggingface_hub import constants

    for file in Path(constants.HF_HUB_CACHE, model_folder(name), "blobs").glob("*.incomplete"):
        with suppress(OSError):
            if time.time() - file.lstat().st_mtime > ABANDONED_SECONDS:
                file.unlink()


def require_undamaged(
    name: str, paths: Sequence[Path], before_piece: BeforePiece = proceed
) -> None:
    """Raise TryAgain if files of the model `name` are damaged or lost, and remove them.

    Only links into the cache are looked at. `before_piece` may raise, which cancels it.
    """
    links = [path for path in paths if path.is_symlink()]
    try:
        damaged = _remove_damaged(name, links, before_piece)
    except Missing as error:
        raise TryAgain(
            f"{name}: another process removed a file of it from this machine's cache. Run again, "
            "which downloads it again."
        ) from error
    if damaged:
        raise TryAgain(
            f"{name}: {damaged[0].name} was damaged in this machine's cache, and was removed. "
            "Run again, which downloads it again."
        )


def _remove_damaged(name: str, links: Sequence[Path], before_piece: BeforePiece) -> Sequence[Path]:
    """Remove the links whose files are lost or damaged, with these files; return the links."""
    with translate_errors(name):
        damaged = [link for link in links if not link.exists()]
        there = [link for link in links if link not in damaged]
        wholes = map_files(there, lambda link: _is_whole(link, before_piece))
        damaged += [link for link, whole in zip(there, wholes, strict=True) if not whole]
        for link in damaged:
            link.resolve().unlink(missing_ok=True)
            link.unlink(missing_ok=True)
    return damaged


@contextmanager
def loading_from_cache(name: str, place: Path) -> Iterator[None]:
    """Raise TryAgain, not BadInput, if a file below `place` is damaged or lost in the cache."""
    try:
        yield
    except BadInput:
        if model_folder(name) in place.parts:
            require_undamaged(name, [place, *place.rglob("*")])
        raise


def _is_whole(link: Path, before_piece: BeforePiece) -> bool:
    """Return whether a file has the content that its name says, if its name is a hash."""
    content = link.resolve()
    if SHA256_NAME.fullmatch(content.name):
        digests = [hashlib.sha256()]
    elif SHA1_NAME.fullmatch(content.name):
        header = b"blob %d\0" % content.stat().st_size
        # As git hashes it, or as mirrors do that do not know git.
        digests = [hashlib.sha1(start, usedforsecurity=False) for start in (header, b"")]
    else:
        return True
    for piece in iter_pieces(content, before_piece):
        for digest in digests:
            digest.update(piece)
    return content.name in [digest.hexdigest() for digest in digests]


def is_hub_id(name: str) -> bool:
    """Return whether a model's name is a hub id: org/name, and no such folder exists here."""
    has_two_parts = name.count("/") == 1
    is_path = name.startswith((BUNDLED_PREFIX, ".", "/", "~")) or is_weights_file(name)
    return has_two_parts and not is_path and not Path(name).exists()
