"""Upload of a complete export to a hub, as a tagged version of a dataset.

Files that the hub already has are not uploaded again. Existing data files are not even read, since
they never change. The last commit adds the manifest and the card, and deletes the files that the
export has dropped.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from imagekiln.steps.errors import (
    BadInput,
    KilnError,
    Missing,
    TryAgain,
    explained_by,
    first_line,
)
from imagekiln.steps.export.commits import DATA_FOLDER, MANIFEST_FOLDER, require_export
from imagekiln.steps.export.step import is_complete
from imagekiln.steps.runs.keys import CARD_KEY
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

if TYPE_CHECKING:
    from huggingface_hub import HfApi

REPOSITORY_PATTERN = re.compile(r"hf://datasets/([\w.-]{1,96}/[\w.-]{1,96})", re.ASCII)
TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105  # the name of a variable
COMMIT_FILES = 50
OWN_FOLDERS = (f"{DATA_FOLDER}/", f"{MANIFEST_FOLDER}/")
DENIED_STATUSES = (401, 403)
BUSY_STATUSES = (429, 500, 502, 503, 504)
RETRIED_STATUSES = (*BUSY_STATUSES, 409, 412)  # 409 and 412: another client has committed meanwhile


@dataclass(frozen=True, slots=True)
class PushResult:
    """A pushed export: its name on the hub, the commit that completes it, and its files.

    `version` is the tag of that commit.
    """

    repository: str
    commit: str
    version: str | None
    files: int


def push(
    export: str,
    repository: str,
    version: str | None = None,
    *,
    public: bool = False,
    progress: Progress | None = None,
) -> PushResult:
    """Upload the complete export at a URI to `hf://datasets/USER/NAME`, and tag it as `version`.

    Creates the repository if it does not exist, private unless `public`. A second call resumes an
    interrupted upload. Raises Missing if there is no export, BadInput if it is not complete, the
    name is wrong, or the hub refuses access or has the version at another commit, TryAgain if the
    hub is unreachable.
    """
    name = _read_name(repository)
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise BadInput(f"{repository}: {TOKEN_VARIABLE} is not set. Set it to a token that writes.")
    store = open_store(export)
    head = require_export(store)
    if head.commit.settings.format == "files":
        raise BadInput(
            f"{store.uri}: has a file for each image, and a hub is slow with so many. "
            "Export as parquet, and push that."
        )
    if not is_complete(store, head):
        raise BadInput(f"{store.uri}: is not complete. Run the command that exports it again.")
    data = [file.key for file in head.commit.files]
    others = [*head.commit.pieces, CARD_KEY]
    _require_own_files(store, [*data, *others])
    from huggingface_hub import HfApi  # slow to import

    with explained_by(partial(_explain, repository)):
        api = HfApi(token=token)
        api.create_repo(
            name,
            repo_type="dataset",
            private=not public,
            exist_ok=True,
        )
        commit = _upload_all(api, name, store, data, others, progress or NoProgress())
        if version is not None:
            _tag(api, name, version, commit)
    return PushResult(repository, commit, version, len(data) + len(others))


def _read_name(repository: str) -> str:
    match = REPOSITORY_PATTERN.fullmatch(repository)
    if match is None:
        raise BadInput(f"{repository}: is no dataset of the hub. Write hf://datasets/USER/NAME.")
    return match[1]


def _require_own_files(store: Store, keys: Sequence[str]) -> None:
    """Raise BadInput if a file is absent, or a link, which may lead to any local file."""
    folders = {key.rpartition("/")[0] for key in keys}
    own = {entry.key for folder in folders for entry in store.list_folder(folder)}
    for key in keys:
        if key not in own:
            raise BadInput(
                f"{store.uri_of(key)}: is missing, or is a link, which is not published. Restore "
                "it, or export to another folder."
            )


def _upload_all(
    api: "HfApi",
    name: str,
    store: Store,
    data: Sequence[str],
    others: Sequence[str],
    progress: Progress,
) -> str:
    """Upload all files, committing data files in groups. Return the commit that has all files."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    def upload(key: str) -> CommitOperationAdd:
        """Upload a file for a later commit, unless the hub has it. Its bytes are then released."""
        addition = CommitOperationAdd(key, store.read(key))
        api.preupload_lfs_files(name, [addition], repo_type="dataset", num_threads=1)
        return addition

    commit = partial(
        api.create_commit,
        name,
        commit_message="Export from Imagekiln",
        repo_type="dataset",
    )
    present = {*api.list_repo_files(name, repo_type="dataset")}
    new = [key for key in data if key not in present]
    progress.start(len(new))
    for start in range(0, len(new), COMMIT_FILES):
        keys = new[start : start + COMMIT_FILES]
        commit([upload(key) for key in keys])
        progress.add_drawn(len(keys))
        progress.add_committed(len(keys))
    present -= {*data, *others}
    outdated = sorted(path for path in present if path.startswith(OWN_FOLDERS))
    deletions = [CommitOperationDelete(path) for path in outdated]
    additions = [upload(key) for key in others]
    # The hub ignores unchanged files.
    info = commit([*additions, *deletions])
    progress.close()
    return info.oid


def _tag(api: "HfApi", name: str, version: str, commit: str) -> None:
    api.create_tag(
        name,
        tag=version,
        revision=commit,
        repo_type="dataset",
        exist_ok=True,
    )
    tags = api.list_repo_refs(name, repo_type="dataset").tags
    if (version, commit) not in [(tag.name, tag.target_commit) for tag in tags]:
        raise BadInput(
            f"{name}: version {version} is there, with other files. Choose another version."
        )


def _explain(repository: str, error: Exception) -> KilnError | None:
    """Convert an error of the hub's client to a message, without any HTTP headers."""
    cause = error.__cause__ if isinstance(error, RuntimeError) else error  # raised by an upload
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status in DENIED_STATUSES:
        return BadInput(
            f"{repository}: the hub refused access ({status}). "
            f"Check the name, and that the token in {TOKEN_VARIABLE} may write there."
        )
    reason = first_line(str(cause)) or type(cause).__name__
    if status is not None and status not in RETRIED_STATUSES:
        return Missing(f"{repository}: the hub refused this ({reason}). Correct it.")
    is_of_network = isinstance(cause, OSError) or type(cause).__module__.startswith("httpx")
    if status is None and not is_of_network:
        return None
    return TryAgain(
        f"{repository}: the hub is not reached, is busy, or somebody else changes it ({reason}). "
        "Run the command again."
    )
