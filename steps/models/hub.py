"""Models on the Hugging Face hub: pinned commits, their files, and failures as sentences."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import ERROR
from pathlib import Path

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.storage.failures import error_reason, explain_storage_error

CONFIGURATION_PATTERNS = [
    "*.json",
    "*/*.json",
    "*/merges.txt",
    "*/spiece.model",
    "*/tokenizer.model",
]
DEFAULT_REVISION = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
ACCESS_DENIED_STATUSES = {401, 403}
NO_MODEL = (Missing, "no such model on the hub, or no access. Check {setting}.id and HF_TOKEN.")
NO_FILE = (Missing, "has no such file at that revision. Correct {setting}.{file_field}.")
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
        "Fill the model cache: `imagekiln fetch RUN`. Or unset it.",
    ),
}


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
    """Whether a revision is a whole commit, which never changes, and not a branch or tag."""
    return revision is not None and COMMIT.fullmatch(revision) is not None


def resolve_commit(reference: HubReference, setting: str) -> str:
    """The commit of what `setting` names, by its branch or tag, or else of the default branch.

    Where the hub cannot be reached, it is the one that this machine last fetched by that name.
    Raises BadInput, Missing, TryAgain.
    """
    from huggingface_hub import HfApi

    named = reference.model_copy(update={"revision": reference.revision or DEFAULT_REVISION})
    with translate_hub_errors(named, setting), _silence_hub_client():
        return HfApi().resolve_revision(named.id, revision=named.revision).resolved


def download_file(reference: HubReference, name: str, setting: str) -> Path:
    """One file of what `setting` names, in the hub's cache. Raises BadInput, Missing, TryAgain."""
    require_revision(reference, setting)
    from huggingface_hub import hf_hub_download  # slow to import, and local models do not need it

    with translate_hub_errors(reference, setting), _silence_hub_client():
        return Path(hf_hub_download(reference.id, name, revision=reference.revision))


def download_snapshot(reference: HubReference, patterns: list[str], setting: str) -> Path:
    """The matching files' folder in the hub's cache. Raises BadInput, Missing, TryAgain."""
    require_revision(reference, setting)
    from huggingface_hub import snapshot_download

    with translate_hub_errors(reference, setting), _silence_hub_client():
        folder = snapshot_download(
            reference.id, revision=reference.revision, allow_patterns=patterns
        )
        return Path(folder)


def list_hub_files(model: ModelSettings) -> tuple[str, ...]:
    """The names of the model's files, weights included; none where the hub cannot be reached."""
    from huggingface_hub import HfApi

    # A cached model needs no hub.
    with suppress(KilnError), translate_hub_errors(model), _silence_hub_client():
        return tuple(HfApi().list_repo_files(model.id, revision=model.revision))
    return ()


@contextmanager
def translate_hub_errors(reference: HubReference, setting: str = "model") -> Iterator[None]:
    """Turn what the hub's client raises inside into a sentence about what `setting` names."""
    try:
        yield
    except Exception as error:
        explained = _explain_hub_error(reference, error, setting)
        if explained is None:
            raise
        raise explained from error


def require_revision(reference: HubReference, setting: str) -> None:
    """Raise BadInput where what `setting` names is not pinned to a commit."""
    if not is_commit(reference.revision):
        raise BadInput(
            f"{setting}.revision is not a commit: pin {reference.id} to one, 40 hexadecimal digits."
        )


def _explain_hub_error(reference: HubReference, error: Exception, setting: str) -> KilnError | None:
    from huggingface_hub import errors

    from_cache = errors.LocalEntryNotFoundError | errors.RevisionResolutionError
    if isinstance(error, from_cache) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what kept the client from the hub before it looked in the cache
    name = reference.id
    if explanation := HUB_ERRORS.get(type(error).__name__):
        kind, sentence = explanation
        file_field = "weight_name" if hasattr(reference, "weight_name") else "id"
        explained = sentence.format(
            revision=reference.revision, setting=setting, file_field=file_field
        )
        return kind(f"{name}: {explained}")
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in ACCESS_DENIED_STATUSES:
            return BadInput(f"{name}: the hub refused access ({status}). Check HF_TOKEN.")
    if isinstance(error, OSError) and error.errno is not None:
        return explain_storage_error(str(error.filename or name), error)
    unreachable = isinstance(error, errors.HfHubHTTPError | errors.LocalEntryNotFoundError)
    if unreachable or _is_network_error(error):
        return TryAgain(
            f"{name}: the hub could not be reached. Run again, or set {setting}.id to a local path."
        )
    if isinstance(error, OSError):
        return BadInput(f"{name}: {error_reason(error)}. Choose another model.")
    return None


def _is_network_error(error: Exception) -> bool:
    return isinstance(error, ConnectionError) or type(error).__module__.startswith("httpx")


@contextmanager
def _silence_hub_client() -> Iterator[None]:
    """Keep the client's progress bars and retry warnings off the terminal."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    level = logging.get_verbosity()
    hidden = are_progress_bars_disabled()
    logging.set_verbosity(ERROR)
    disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if not hidden:
            enable_progress_bars()
