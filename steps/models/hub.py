"""Models on a hub: one pinned commit, its configuration here, and each failure as a sentence."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging import ERROR
from pathlib import Path
from typing import Protocol

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.storage.failures import error_reason, explain_storage_error

CONFIGURATION_PATTERNS = [
    "*.json",
    "*/*.json",
    "*/merges.txt",
    "*/spiece.model",
    "*/tokenizer.model",
]
ACCESS_DENIED_STATUSES = {401, 403}
NO_MODEL = (Missing, "no such model on the hub, or no access. Check {setting}.id and HF_TOKEN.")
NO_FILE = (Missing, "has no such file at that revision. Correct {setting}.weight_name.")
# By the names of the client's errors: it is slow to import.
HUB_ERRORS: dict[str, tuple[type[KilnError], str]] = {
    "GatedRepoError": (BadInput, "is gated. Accept its terms on the hub and set HF_TOKEN."),
    "RevisionNotFoundError": (Missing, "has no revision {revision}. Correct {setting}.revision."),
    "RepositoryNotFoundError": NO_MODEL,
    "HFValidationError": NO_MODEL,
    "EntryNotFoundError": NO_FILE,
    "RemoteEntryNotFoundError": NO_FILE,
    "DisabledRepoError": (BadInput, "is disabled on the hub. Name another model."),
    "OfflineModeIsEnabled": (
        BadInput,
        "is not in this machine's cache, and HF_HUB_OFFLINE is set. Unset it.",
    ),
}


class HubReference(Protocol):
    """Something on a hub, at a commit."""

    @property
    def id(self) -> str:
        """Its name there, as org/name."""

    @property
    def revision(self) -> str | None:
        """The commit."""


def download_configuration(model: ModelSettings) -> Path:
    """The model's small files, in the hub's cache on this machine. Raises BadInput, Missing, TryAgain."""
    require_revision(model, "model")
    from huggingface_hub import (
        snapshot_download,
    )  # slow to import, and a local model needs none of it

    with translate_hub_errors(model), _silence_hub_client():
        folder = Path(
            snapshot_download(
                model.id, revision=model.revision, allow_patterns=CONFIGURATION_PATTERNS
            )
        )
    if not (folder / "model_index.json").is_file():
        raise BadInput(
            f"{model.id}: has no model_index.json, so it is no diffusers pipeline. Name another model."
        )
    return folder


def download_file(wanted: HubReference, name: str, setting: str) -> Path:
    """One file that `setting` asks for, in the hub's cache on this machine. Raises BadInput, Missing, TryAgain."""
    require_revision(wanted, setting)
    from huggingface_hub import hf_hub_download

    with translate_hub_errors(wanted, setting), _silence_hub_client():
        return Path(hf_hub_download(wanted.id, name, revision=wanted.revision))


def download_snapshot(wanted: HubReference, patterns: list[str], setting: str) -> Path:
    """The files of such names, in the hub's cache on this machine. Raises BadInput, Missing, TryAgain."""
    require_revision(wanted, setting)
    from huggingface_hub import snapshot_download

    with translate_hub_errors(wanted, setting), _silence_hub_client():
        return Path(snapshot_download(wanted.id, revision=wanted.revision, allow_patterns=patterns))


def list_hub_files(model: ModelSettings) -> tuple[str, ...]:
    """The names of the model's files, weights and all; none where the hub cannot be asked."""
    from huggingface_hub import HfApi

    with suppress(KilnError), translate_hub_errors(model):  # a model in the cache needs no hub
        return tuple(HfApi().list_repo_files(model.id, revision=model.revision))
    return ()


@contextmanager
def translate_hub_errors(wanted: HubReference, setting: str = "model") -> Iterator[None]:
    """Turn what the hub's client raises inside into a sentence about what `setting` asks for."""
    try:
        yield
    except Exception as error:
        told_as = _explain_hub_error(wanted, error, setting)
        if told_as is None:
            raise
        raise told_as from error


def require_revision(wanted: HubReference, setting: str) -> None:
    """Raise BadInput where nothing pins what `setting` asks for to a commit."""
    if wanted.revision is None:
        raise BadInput(
            f"{setting}.revision is missing: pin {wanted.id} to a commit, 40 hexadecimal digits."
        )


def _explain_hub_error(model: HubReference, error: Exception, setting: str) -> KilnError | None:
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what kept the client from the hub, before it looked on this disk
    if known := HUB_ERRORS.get(type(error).__name__):
        kind, sentence = known
        return kind(f"{model.id}: {sentence.format(revision=model.revision, setting=setting)}")
    if (
        isinstance(error, errors.HfHubHTTPError)
        and error.response.status_code in ACCESS_DENIED_STATUSES
    ):
        return BadInput(
            f"{model.id}: the hub refused access ({error.response.status_code}). Check HF_TOKEN."
        )
    if isinstance(error, OSError) and error.errno is not None:
        return explain_storage_error(str(error.filename or model.id), error)
    if isinstance(
        error, errors.HfHubHTTPError | errors.LocalEntryNotFoundError
    ) or _is_network_error(error):
        return TryAgain(
            f"{model.id}: the hub could not be reached. Run again, or name a local folder."
        )
    return (
        BadInput(f"{model.id}: {error_reason(error)}. Name another model.")
        if isinstance(error, OSError)
        else None
    )


def _is_network_error(error: Exception) -> bool:
    return isinstance(error, ConnectionError) or type(error).__module__.startswith("httpx")


@contextmanager
def _silence_hub_client() -> Iterator[None]:
    """Keep the client's progress bars and its warnings at each try off the terminal."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    level, hidden = logging.get_verbosity(), are_progress_bars_disabled()
    logging.set_verbosity(ERROR)
    disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if not hidden:
            enable_progress_bars()
