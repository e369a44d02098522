"""The commits of an export: as those of a run, objects created once under consecutive numbers.

The highest commit is the export. A process announces new files in a commit, only then copies
images, and counts the files in the next commit. A process that loses a number starts over from the
commit that won it. Files that are left out of a commit are deleted after it.
"""

from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Annotated

import pyarrow as pa
from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, Missing, cut_name, version_error
from imagekiln.steps.export.layout import (
    DATA_FOLDER,
    DATA_KEY,
    FILE_NAME,
    FOLDER_TABLE,
    MANIFEST_FOLDER,
    MANIFEST_KEY,
    rows_key,
)
from imagekiln.steps.export.settings import ExportSettings
from imagekiln.steps.job.fields import RunId
from imagekiln.steps.job.output import FILE_SUFFIXES
from imagekiln.steps.runs.commits import count_entries, digest_of
from imagekiln.steps.runs.keys import SHA256_PATTERN, commit_key
from imagekiln.steps.runs.stats import Count
from imagekiln.steps.runs.tables import parse_parquet, read_whole
from imagekiln.steps.storage.store import Store, require_conditional_writes

EXPORT_VERSION = 1
MAX_FILES = 300_000  # a commit stays as small as a plan can be
IMAGE_SUFFIX_PATTERN = rf"^(?:{'|'.join(FILE_SUFFIXES.values())})$".replace(".", r"\.")
DataKey = Annotated[str, Field(pattern=f"^{DATA_KEY}$")]


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run whose images are exported, and the suffix of their files.

    `state` is a digest of the manifests that were compared with the export.
    """

    run_id: RunId
    suffix: Annotated[str, Field(pattern=IMAGE_SUFFIX_PATTERN)]
    state: str


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file: its key, its images with the sum of their bytes, and the hash of its rows' object.

    `manifest` is the piece of the manifest that has its rows.
    """

    key: DataKey
    images: Annotated[int, Field(ge=1)]
    bytes: Count
    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]
    manifest: Annotated[str, Field(pattern=f"^{MANIFEST_KEY}$")]


Files = Annotated[tuple[ExportFile, ...], Field(max_length=MAX_FILES)]


@dataclass(frozen=True, slots=True)
class ExportCommit:
    """The state of an export. `is_run` says that the source is one run, not an output of several.

    `announced` are the files that it is about to have, `unchanged` counts the images in the last
    ones that it had before. Of older runs were left out: `duplicates`, which a newer run holds, and
    `superseded`, whose value in the column `newest_by` an image of a newer run has.
    """

    export_version: int
    settings: ExportSettings
    is_run: bool
    runs: tuple[ExportedRun, ...] = ()
    files: Files = ()
    announced: Files | None = None
    unchanged: Count = 0
    duplicates: Count = 0
    superseded: Count = 0

    @property
    def images(self) -> int:
        """The number of all images."""
        return sum(file.images for file in self.files)

    @property
    def bytes(self) -> int:
        """The bytes of all images."""
        return sum(file.bytes for file in self.files)

    @property
    def pieces(self) -> list[str]:
        """The keys of the manifest's pieces."""
        return list(dict.fromkeys(file.manifest for file in self.files))

    def suffixes(self, rows: pa.Table) -> list[str]:
        """The suffix of each image's file, for planned rows."""
        suffix_of = {run.run_id: run.suffix for run in self.runs}
        suffixes = []
        for part in rows["part"].to_pylist():
            run_id, _, _ = part.partition("/")
            suffixes.append(suffix_of[run_id])
        return suffixes


@dataclass(frozen=True, slots=True)
class ExportHead:
    """The highest commit of an export and its number, which is -1 before there is any."""

    number: int
    commit: ExportCommit


COMMIT_TYPE_ADAPTER: TypeAdapter[ExportCommit] = TypeAdapter(ExportCommit)


def read_export(store: Store) -> ExportHead | None:
    """The highest commit of the export in `store`; None if there is none. Raises BadInput."""
    count = count_entries(store, commit_key)
    if not count:
        return None
    key = commit_key(count - 1)
    content = store.read(key)
    where = store.uri_of(key)
    try:
        commit = COMMIT_TYPE_ADAPTER.validate_json(content)
    except ValidationError as error:
        raise BadInput(
            f"{where}: is not a commit of an export. Restore it, or choose another folder."
        ) from error
    if commit.export_version != EXPORT_VERSION:
        raise version_error(where, commit.export_version, EXPORT_VERSION)
    return ExportHead(count - 1, commit)


def require_export(store: Store) -> ExportHead:
    """The highest commit of an export. Raises Missing if there is none, BadInput."""
    head = read_export(store)
    if head is None:
        raise Missing(f"{store.uri}: is no export. Check its name.")
    return head


def create_export_commit(store: Store, number: int, commit: ExportCommit) -> bool:
    """Create a commit unless another process has the number. Raises BadInput, TryAgain."""
    content = COMMIT_TYPE_ADAPTER.dump_json(commit) + b"\n"
    is_created = store.create(commit_key(number), content)
    if is_created and number == 0:
        require_conditional_writes(store, commit_key(0), content)
    return is_created


def is_highest(store: Store, head: ExportHead) -> bool:
    """True if there is no higher commit."""
    return not store.exists(commit_key(head.number + 1))


def require_settings(store: Store, commit: ExportCommit, settings: ExportSettings) -> None:
    """Raise BadInput if an export was begun with other settings."""
    for field in fields(settings):
        first = getattr(commit.settings, field.name)
        current = getattr(settings, field.name)
        if first != current:
            option = field.name.replace("_", "-")
            raise BadInput(
                f"{store.uri}: holds an export with {option} {cut_name(str(first))}, and this one "
                f"has {option} {cut_name(str(current))}. Use the same settings, or another "
                "destination."
            )


def read_file_rows(store: Store, file: ExportFile) -> pa.Table:
    """The rows of one file, as they were planned. Raises BadInput if they are others."""
    key = rows_key(file.sha256)
    content = store.read(key)
    if digest_of(content) != file.sha256:
        raise BadInput(
            f"{store.uri_of(key)}: has other bytes than were planned. "
            "Restore it, or export to another destination."
        )
    with parse_parquet(content, store.uri_of(key)) as parquet:
        return read_whole(parquet)


def remove_dropped(store: Store, head: ExportHead) -> None:
    """Delete files that commits up to this one have announced, and it does not have.

    Names are never used again, so that deleting is always right. Each export does it again: a
    process that slept while it wrote such a file may have brought it back. Raises TryAgain.
    """
    kept = {*head.commit.pieces}
    for file in head.commit.files:
        kept.add(file.key.removesuffix(FOLDER_TABLE))
    for folder in (DATA_FOLDER, MANIFEST_FOLDER):
        _remove_from(store, folder, kept, head.number)


def _remove_from(store: Store, folder: str, kept: Set[str], newest: int) -> None:
    for entry in list(store.list_folder(folder)):
        name = FILE_NAME.fullmatch(entry.key.rpartition("/")[2])
        if entry.key in kept or (name and int(name["commit"]) > newest):
            continue
        if name:
            objects = store.list_folder(entry.key) if entry.is_folder else [entry]
            for each in list(objects):
                with suppress(Missing):  # another process was faster
                    store.remove(each.key)
        elif entry.is_folder:
            _remove_from(store, entry.key, kept, newest)
        if entry.is_folder:
            store.remove_folder(entry.key)
