"""A run's folder on a local disk: temporary file, fsync, and a link that fails if the name is taken."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import ObjectInfo, is_plain_name

NO_HARD_LINK_ERRNOS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class LocalStore:
    """A folder of objects on this machine. Folders are made when something is written."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which need not be there yet."""
        self._folder = folder
        self.uri = str(folder)

    def uri_of(self, key: str) -> str:
        """The object's path."""
        return f"{self.uri}/{key}"  # asked for with every object, and pathlib is slow

    def read(self, key: str) -> bytes:
        """The whole object. Raises Missing."""
        with translate_errors(self.uri_of(key)):
            return (self._folder / key).read_bytes()

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """The object for reading in pieces. Raises Missing."""
        with translate_errors(self.uri_of(key)), (self._folder / key).open("rb") as file:
            yield file

    def read_prefix(self, key: str, most: int) -> bytes:
        """The object's first bytes, at most so many. Raises Missing."""
        with self.open(key) as file:
            return file.read(most)

    def exists(self, key: str) -> bool:
        """Whether the object is there."""
        with translate_errors(self.uri_of(key)):
            return (self._folder / key).exists()

    def create(self, key: str, data: bytes) -> bool:
        """Write the object on condition that its name is free; False where it was taken."""
        path = self._folder / key
        with translate_errors(str(path)), self._temporary_file(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_HARD_LINK_ERRNOS:
                    raise
                raise BadInput(
                    f"{path}: this file system has no hard links, without which two writers could overwrite each "
                    "other. Name another folder, or s3://."
                ) from error
            sync_folder(path.parent)
            return True

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, over what was there."""
        path = self._folder / key
        with translate_errors(str(path)), self._temporary_file(path, data) as temporary:
            temporary.replace(path)
            sync_folder(path.parent)

    def remove(self, key: str) -> None:
        """Delete the object."""
        with translate_errors(self.uri_of(key)):
            (self._folder / key).unlink()

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """What lies in a folder. Links are left out: they may lead elsewhere."""
        path = self._folder / folder
        with translate_errors(str(path)), suppress(FileNotFoundError), os.scandir(path) as found:
            for each in found:
                with suppress(FileNotFoundError):  # gone meanwhile
                    about = each.stat(follow_symlinks=False)
                    if not each.is_symlink() and is_plain_name(each.name):
                        key = f"{folder}/{each.name}" if folder else each.name
                        yield ObjectInfo(
                            key, each.is_dir(follow_symlinks=False), about.st_size, about.st_mtime
                        )

    def remove_folder(self, folder: str) -> None:
        """Delete an empty folder; one that is not empty stays."""
        with suppress(OSError):
            (self._folder / folder).rmdir()

    @contextmanager
    def _temporary_file(self, path: Path, data: bytes) -> Iterator[Path]:
        """A synced temporary file beside `path` with `data` in it, gone afterwards."""
        _make_folder(path.parent)
        handle, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(
                    file.fileno(), 0o644
                )  # mkstemp's 0600 would hide the dataset from its readers
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each to survive a power cut."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(
        FileExistsError
    ):  # another writer was faster, or a file is there: then the next one fails
        folder.mkdir()
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
