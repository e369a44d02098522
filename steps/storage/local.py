"""Folder of objects on a local disk, written by temporary file, fsync and hard link.

The folder may contain links, pipes or devices made by others. Links to files are read, since
dataset caches use them. Nothing is written, listed or removed through a link to a folder.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.storage.failures import error_reason, translate_errors
from imagekiln.steps.storage.store import ObjectInfo, is_plain_name, require_plain_key

NO_HARD_LINK_ERRNOS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
# mkstemp's 0600 would hide the dataset from its readers.
FILE_MODE = 0o644


def local_path(name: str) -> Path:
    """Return the path of a local name or file:// URI, with `~` expanded. Raises BadInput."""
    path = Path(name.removeprefix("file://"))
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise BadInput(
            f"{name}: {path.parts[0]} is the home folder of nobody on this machine. "
            "Write the path from the root, or without `~`."
        ) from error


def is_remote_uri(name: str) -> bool:
    """Return whether the name is a URI of anything but a local disk."""
    return "://" in name and not name.startswith("file://")


class LocalStore:
    """Folder of objects on this machine. Folders are created with their first object."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which need not exist."""
        self._folder = folder
        self.uri = str(folder)

    def uri_of(self, key: str) -> str:
        """Return the object's path."""
        return f"{self.uri}/{key}"  # called for every object, and pathlib is slow

    def read(self, key: str) -> bytes:
        """Read the whole object. Raises Missing."""
        with self.open(key) as file:
            return file.read()

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """Open the object for reading in blocks. Raises Missing."""
        path = self._path_of(key)
        with translate_errors(self.uri_of(key), "read"), open_file(path) as file:
            yield file

    def read_prefix(self, key: str, most: int) -> bytes:
        """Read at most the first `most` bytes of the object. Raises Missing."""
        with self.open(key) as file:
            # Python allocates as many bytes as requested, even for a small file.
            return file.read(min(most, os.fstat(file.fileno()).st_size))

    def exists(self, key: str) -> bool:
        """Return whether the object exists."""
        with translate_errors(self.uri_of(key), "read"):
            try:
                self._path_of(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True  # Path.exists is also False for paths that cannot be checked

    def create(self, key: str, data: bytes) -> bool:
        """Create the object. Return False if it exists already."""
        path = self._own_path_of(key)
        with _translate_write_errors(path), _temporary_file(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_HARD_LINK_ERRNOS:
                    raise
                raise BadInput(
                    f"{path}: this file system has no hard links, without which two writers "
                    "could overwrite each other. Use another folder, or an s3:// URI."
                ) from error
            sync_folder(path.parent)
            return True

    def replace(self, key: str, data: bytes) -> None:
        """Write the whole object, replacing an earlier one."""
        path = self._own_path_of(key)
        with _translate_write_errors(path), _temporary_file(path, data) as temporary:
            temporary.replace(path)
            sync_folder(path.parent)

    def remove(self, key: str) -> None:
        """Delete the object."""
        with translate_errors(self.uri_of(key), "remove"):
            self._own_path_of(key).unlink()

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield the objects and folders in a folder, without links, which may lead elsewhere."""
        path = self._path_of(folder)
        if self._find_link(folder) is not None:
            return
        with (
            translate_errors(str(path), "list"),
            suppress(FileNotFoundError),
            os.scandir(path) as entries,
        ):
            for entry in entries:
                if entry.is_symlink() or not is_plain_name(entry.name):
                    continue
                with suppress(FileNotFoundError):  # deleted in the meantime
                    key = f"{folder}/{entry.name}" if folder else entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    status = entry.stat(follow_symlinks=False)
                    yield ObjectInfo(key, is_folder, status.st_size, status.st_mtime)

    def remove_folder(self, folder: str) -> None:
        """Delete an empty folder, and leave any other."""
        with suppress(OSError):
            self._path_of(folder).rmdir()

    def _path_of(self, key: str) -> Path:
        require_plain_key(self.uri, key)
        return self._folder / key

    def _own_path_of(self, key: str) -> Path:
        """Return the path of an object to write or remove. Raises BadInput if it follows a link."""
        path = self._path_of(key)
        folder, _, _ = key.rpartition("/")
        link = self._find_link(folder)
        if link is not None:
            raise BadInput(
                f"{link}: is a link, and nothing is written or removed behind one. "
                "Replace it by the folder that it leads to."
            )
        return path

    def _find_link(self, folder: str) -> str | None:
        """Return the first link on the path to a folder within this one."""
        path = self.uri
        for name in folder.split("/") if folder else ():
            path = f"{path}/{name}"
            if os.path.islink(path):  # noqa: PTH114  # per object, and pathlib is slow
                return path
        return None


@contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading. Raises BadInput for a pipe, without blocking on it."""
    with open(path, "rb", opener=_open_at_once) as file:  # pathlib has no opener
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadInput(f"{path}: is a pipe or a device. Put a file in its place.")
        yield file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def temporary_folder(prefix: str) -> "tempfile.TemporaryDirectory[str]":
    """Create a folder for working files, deleted at the end of the block. Raises TryAgain."""
    try:
        return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise TryAgain(
            f"no temporary folder can be made ({error_reason(error)}). Free some space, or name a "
            "folder that has it in TMPDIR, and run the command again."
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, if its file system supports that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
            raise
    finally:
        os.close(handle)


@contextmanager
def _translate_write_errors(path: Path) -> Iterator[None]:
    """Translate errors of writing a file. A missing path means that its new folder was deleted."""
    try:
        with translate_errors(str(path), "write"):
            yield
    except Missing as error:
        raise TryAgain(
            f"{path}: another process removed its folder meanwhile. Run the command again."
        ) from error


@contextmanager
def _temporary_file(path: Path, data: bytes) -> Iterator[Path]:
    """Write a synced temporary file with `data` beside `path`, deleted at the end of the block."""
    _make_folder(path.parent)
    handle, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), FILE_MODE)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)  # another writer may be faster
    sync_folder(folder.parent)
