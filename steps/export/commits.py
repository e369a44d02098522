"""Commits of an export: as in a run, objects that are created once, under consecutive numbers.

The highest commit is the state of the export. A process announces new files in a commit, then
copies images, and counts the files in the next commit. A process that loses a number starts over
from the commit that took it. Files left out of a commit are deleted after it.

Names of files with images or rows begin with the number of the commit that announced them, and are
never reused. Names of data files also contain the digest of their rows, so that equal names have
equal images, even if two exports are pushed to one hub.
"""

import re
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import quote

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, Missing, cut_name, version_error
from imagekiln.steps.export.settings import ExportSettings
from imagekiln.steps.job.output import ExportFormat
from imagekiln.steps.runs.commits import count_entries, digest_of
from imagekiln.steps.runs.keys import DIGEST_DIGITS, commit_key
from imagekiln.steps.runs.stats import Count
from imagekiln.steps.runs.tables import parse_parquet, read_whole
from imagekiln.steps.storage.store import Store, require_conditional_writes

EXPORT_VERSION = 1
MANIFEST_FOLDER = "manifest"
DATA_FOLDER = "data"
ROWS_FOLDER = "_rows"
SUBFOLDER_FILES = 1000  # a hub accepts 10,000 in a folder, and lists long ones slowly
NAME_DIGITS = 8  # of a digest
MAX_FOLDER_CHARS = 240  # below the limit of disks
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # the name in Hive and its readers
FOLDER_TABLE = "/metadata.parquet"  # in a folder of pictures
FORMAT_SUFFIXES: Mapping[ExportFormat, str] = {
    "parquet": ".parquet",
    "arrow": ".arrow",
    "webdataset": ".tar",
    "files": FOLDER_TABLE,
}
FILE_NAME = re.compile(
    r"(?P<commit>[0-9]{6,})-[0-9]{5,}(?:-[0-9a-f]{8})?(?:\.parquet|\.arrow|\.tar)?"
)


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """An exported run: the name of its folder, and the suffix of its image files.

    `state` is a digest of the manifests that were compared with the export.
    """

    run_id: str
    suffix: str
    state: str


@dataclass(frozen=True, slots=True)
class ExportFile:
    """An exported file: its key, its images, their total bytes, and the hash of its rows' object.

    `manifest` is the piece of the manifest with the rows of this file.
    """

    key: str
    images: Count
    bytes: Count
    sha256: str
    manifest: str


@dataclass(frozen=True, slots=True)
class ExportCommit:
    """State of an export. `run` is the source's folder if the source is one run, not an output.

    `announced` are the files of the next state. `unchanged` is the number of images kept from the
    previous state.
    """

    export_version: int
    settings: ExportSettings
    run: str | None
    runs: tuple[ExportedRun, ...] = ()
    files: tuple[ExportFile, ...] = ()
    announced: tuple[ExportFile, ...] | None = None
    unchanged: Count = 0

    @property
    def images(self) -> int:
        """Number of images."""
        return sum(file.images for file in self.files)

    @property
    def bytes(self) -> int:
        """Total bytes of the images."""
        return sum(file.bytes for file in self.files)

    @property
    def pieces(self) -> list[str]:
        """Keys of the manifest's pieces."""
        return list(dict.fromkeys(file.manifest for file in self.files))


@dataclass(frozen=True, slots=True)
class ExportHead:
    """The highest commit of an export and its number, -1 if there is no commit."""

    number: int
    commit: ExportCommit


COMMIT_TYPE_ADAPTER: TypeAdapter[ExportCommit] = TypeAdapter(ExportCommit)


def read_export(store: Store) -> ExportHead | None:
    """Read the highest commit of the export in `store`; None if there is none. Raises BadInput."""
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
    """Read the highest commit of an export. Raises Missing if there is none, BadInput."""
    head = read_export(store)
    if head is None:
        raise Missing(f"{store.uri}: is no export. Check its name.")
    return head


def create_export_commit(store: Store, number: int, commit: ExportCommit) -> bool:
    """Create a commit. Return False if its number is taken. Raises BadInput, TryAgain."""
    content = COMMIT_TYPE_ADAPTER.dump_json(commit) + b"\n"
    is_created = store.create(commit_key(number), content)
    if is_created and number == 0:
        require_conditional_writes(store, commit_key(0), content)
    return is_created


def is_highest(store: Store, head: ExportHead) -> bool:
    """Return whether there is no higher commit."""
    return not store.exists(commit_key(head.number + 1))


def require_settings(store: Store, commit: ExportCommit, settings: ExportSettings) -> None:
    """Raise BadInput if an export was started with other settings."""
    first = asdict(commit.settings)
    changed = {name: value for name, value in asdict(settings).items() if value != first[name]}
    if changed:
        raise BadInput(
            f"{store.uri}: holds an export with "
            f"{', '.join(f'{name} {first[name]}' for name in changed)}, and this one has "
            f"{', '.join(f'{name} {value}' for name, value in changed.items())}. Use the same "
            "settings, or another destination."
        )


def read_file_rows(store: Store, file: ExportFile) -> pa.Table:
    """Read the planned rows of one file. Raises BadInput if they have changed."""
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
    """Delete files that were announced up to this commit, and are not part of it.

    Names are never reused, so deleting is always safe. Each export deletes them again, since a slow
    process may write such a file late. Raises TryAgain.
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
                with suppress(Missing):  # removed by another process
                    store.remove(each.key)
        elif entry.is_folder:
            _remove_from(store, entry.key, kept, newest)
        if entry.is_folder:
            store.remove_folder(entry.key)


def rows_key(sha256: str) -> str:
    """Return the key of the rows of one file, with the locations of their images in the source."""
    return f"{ROWS_FOLDER}/{sha256[:DIGEST_DIGITS]}.parquet"


def manifest_piece_key(commit: int, number: int) -> str:
    """Return the key of a piece of the manifest that this commit announces."""
    return f"{MANIFEST_FOLDER}/{commit:06d}-{number:05d}.parquet"


def data_key(partition: str, commit: int, number: int, sha256: str, suffix: str) -> str:
    """Return the key of a file, from its number in the commit and the digest of its rows.

    `partition` is the folder of a value, "" without partitions. For a folder of pictures, this is
    the key of its table.
    """
    folders = [DATA_FOLDER]
    if partition:
        folders.append(partition)
    thousand = number // SUBFOLDER_FILES
    if thousand:
        folders.append(f"{commit:06d}-{thousand:03d}")
    folders.append(f"{commit:06d}-{number:05d}-{sha256[:NAME_DIGITS]}{suffix}")
    return "/".join(folders)


def partition_folder(column: str, value: object) -> str:
    """Return the folder of one value of a column in Hive's layout. Any string becomes a plain name.

    Raises BadInput if the value has no such name, or the name would be too long.
    """
    if not isinstance(value, str | int | None):
        raise BadInput(
            f"column {column!r}: is neither text, integer nor boolean, and only these become "
            "folders. Choose another column to partition by."
        )
    text = NULL_PARTITION if value is None else quote(str(value), safe="")
    folder = f"{quote(column, safe='')}={text}"
    if len(folder) > MAX_FOLDER_CHARS:
        raise BadInput(
            f"column {column!r}: {cut_name(str(value))!r} is too long for a folder's name. "
            "Choose another column to partition by."
        )
    return folder
