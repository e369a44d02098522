"""Models on the Hugging Face hub: pinned commits, their files, and failures as sentences."""

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from logging import ERROR, INFO, NOTSET, getLogger
from pathlib import Path
from traceback import walk_tb
from typing import TypeVar

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, explained_by
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.hub_cache import remove_abandoned_downloads, require_undamaged
from imagekiln.steps.storage.failures import error_reason, explain_storage_error

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
INVALID_ADDRESS_ERRORS = {"InvalidURL", "UnsupportedProtocol"}
# Of httpx, where a request is made up: what reads answers is elsewhere.
REQUEST_MODULE = re.compile(r"httpx2?\._client")
ANSWER_MODULE = re.compile(r"httpx2?\._models")
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

    def resolve() -> str:
        with silence_hub_client():
            return HfApi().resolve_revision(named.id, revision=named.revision).resolved

    return ask_hub(named, resolve, setting)


def download_file(reference: HubReference, name: str, setting: str) -> Path:
    """One file of what `setting` names, in the hub's cache. Raises BadInput, Missing, TryAgain."""
    _require_revision(reference, setting)
    from huggingface_hub import hf_hub_download  # slow to import, and local models do not need it

    def download() -> str:
        with silence_hub_client():
            return hf_hub_download(reference.id, name, revision=reference.revision)

    file = Path(ask_hub(reference, download, setting))
    require_undamaged(reference.id, [file])
    return file


def download_snapshot(reference: HubReference, patterns: list[str], setting: str) -> Path:
    """The matching files' folder in the hub's cache. Raises BadInput, Missing, TryAgain."""
    _require_revision(reference, setting)
    from huggingface_hub import snapshot_download

    def download() -> str:
        with silence_hub_client():
            return snapshot_download(
                reference.id, revision=reference.revision, allow_patterns=patterns
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
    with suppress(KilnError), translate_hub_errors(model), silence_hub_client():
        return tuple(HfApi().list_repo_files(model.id, revision=model.revision))
    return ()


def measure_weights(model: ModelSettings, folder: Path, names: Sequence[str]) -> int | None:
    """The bytes that the weights in these files of a model take once they are loaded.

    Only headers are read, on the hub if the folder lacks a file. None if one cannot be read:
    that is for whoever loads it to say.
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
        silence_hub_client(),
        ThreadPoolExecutor(FILES_AT_ONCE, "weights-size") as pool,
    ):
        return sum(pool.map(measure, names)) or None
    return None


def ask_hub(reference: HubReference, request: Callable[[], T], setting: str = "model") -> T:
    """Send a request to the hub, again a few times if the hub is busy.

    The hub's client retries some of its requests, all pods at the same moment, and others not at
    all. These waits are random. Raises BadInput, Missing, TryAgain.
    """
    remove_abandoned_downloads(reference.id)
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            with translate_hub_errors(reference, setting):
                return request()
        except TryAgain as error:
            if not _is_busy(error):
                raise
        spread = random.uniform(1, 1.5)  # noqa: S311  # no secret: it only keeps pods apart
        time.sleep(FIRST_WAIT_SECONDS * 2 ** (attempt - 1) * spread)
    with translate_hub_errors(reference, setting):
        return request()


def _is_busy(error: TryAgain) -> bool:
    """Return whether the answer behind an error says that the hub is busy."""
    from huggingface_hub.errors import HfHubHTTPError

    if not isinstance(error.__cause__, Exception):
        return False
    answer = _hub_cause(error.__cause__)
    return isinstance(answer, HfHubHTTPError) and answer.response.status_code in BUSY_STATUSES


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
    if _is_of_client_setting(error):
        # Its message may quote a part of a password, but for a library that is not installed.
        reason = f" ({error_reason(error)})" if isinstance(error, ImportError) else ""
        return BadInput(
            f"{name}: the hub's client cannot use its settings{reason}. Correct HF_TOKEN, "
            "HF_ENDPOINT or the variables of the proxy."
        )
    if isinstance(error, OSError) and error.errno is not None:
        return explain_storage_error(str(error.filename or name), error)
    unanswered = errors.HfHubHTTPError | errors.LocalEntryNotFoundError | errors.FileMetadataError
    if isinstance(error, unanswered) or _is_network_error(error) or _is_of_answer(error):
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
    """The first failure, before the client or diffusers looked in the cache in vain."""
    from huggingface_hub import errors

    cause = error.__cause__
    from_cache = errors.LocalEntryNotFoundError | errors.RevisionResolutionError
    if isinstance(error, from_cache) and isinstance(cause, Exception):
        return cause
    if type(error) is not OSError or not isinstance(cause, Exception):  # not diffusers' own
        return error
    of_hub = errors.HfHubHTTPError | errors.OfflineModeIsEnabled
    return cause if isinstance(cause, of_hub) or _is_network_error(cause) else error


def _is_of_client_setting(error: Exception) -> bool:
    """Return whether the client could make no request, for what the environment says."""
    if _is_network_error(error) and type(error).__name__ in INVALID_ADDRESS_ERRORS:
        return True
    if not isinstance(error, ImportError | ValueError):
        return False
    return any(re.fullmatch(REQUEST_MODULE, module) for module in _modules_of(error))


def _is_of_answer(error: Exception) -> bool:
    """Return whether the client could not use an answer: the page of a gateway, or half a file."""
    modules = _modules_of(error)
    raised_by = modules[-1] if modules else ""  # an error that was only named as a cause has none
    is_raised_by_client = raised_by.startswith("huggingface_hub.")
    return is_raised_by_client or any(map(ANSWER_MODULE.fullmatch, modules))


def _modules_of(error: Exception) -> list[str]:
    """The names of the modules that an error came through, the one that raised it last."""
    return [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]


def _is_network_error(error: Exception) -> bool:
    return isinstance(error, ConnectionError) or type(error).__module__.startswith("httpx")


@contextmanager
def silence_hub_client() -> Iterator[None]:
    """Keep the client's progress bars and retry warnings off the terminal.

    Not that it waits for a file lock, for which it waits without end: a process that was killed on
    another host may have left it.
    """
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    level = logging.get_verbosity()
    hidden = are_progress_bars_disabled()
    waits = getLogger("huggingface_hub.utils._fixes")
    logging.set_verbosity(ERROR)
    waits.setLevel(INFO)
    disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        waits.setLevel(NOTSET)
        if not hidden:
            enable_progress_bars()
