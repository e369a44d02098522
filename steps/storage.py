"""Where a run lives: whole objects under one folder, created at most once.

The only module that knows fsspec. Nothing is renamed and nothing is listed to find out what is done.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from imagekiln.steps.disk import Disk
from imagekiln.steps.errors import BadInput
from imagekiln.steps.store_errors import code, told

# An endpoint that refuses or swallows connections is given up within a minute; one that takes them and then says
# nothing within three.
S3_OPTIONS = {
    "use_listings_cache": False,
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 10,  # between two bytes, not for the whole answer
        "retries": {"mode": "standard", "total_max_attempts": 6},  # waits 1, 2, 4, 8, 16 s at most, half on average
    },
}
# A write waits without limit to be told to continue, and for a peer that stops reading, so it gets one: seconds, and
# how many more for each byte.
WRITE_SECONDS = 60.0
SLOWEST_WRITE = 1 / 2**20
S3_ROUNDS = 2  # s3fs tries again on its own after botocore gave up; its five rounds would be a quarter of an hour
CONFLICT_TRIES = 5
TAKEN = {"PreconditionFailed", "412"}


class Store(Protocol):
    """One folder of objects. Every method raises a KilnError with a sentence when storage fails."""

    @property
    def uri(self) -> str:
        """The folder, as the user may name it again."""

    def at(self, key: str) -> str:
        """The full name of an object, for messages."""

    def read(self, key: str) -> bytes:
        """The whole object. Raises Missing."""

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        """The object for reading in pieces. Raises Missing."""

    def exists(self, key: str) -> bool:
        """Whether the object, which is never empty, is there now."""

    def create(self, key: str, data: bytes) -> bool:
        """Write the object whole, or not at all where the name is taken: then False."""

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, over what was there."""

    def remove(self, key: str) -> None:
        """Delete the object."""


def open_store(uri: str) -> Store:
    """The folder at a local path or any URI that fsspec knows. Nothing is asked of it yet."""
    if "://" not in uri or uri.startswith("file://"):
        return Disk(Path(uri.removeprefix("file://")))
    files, path = filesystem(uri)
    return ObjectStore(uri.rstrip("/"), path.rstrip("/"), files)


def filesystem(uri: str) -> tuple[Any, str]:
    """The fsspec file system of a URI, and the path in it. (fsspec has no types.)"""
    options = S3_OPTIONS if uri.startswith(("s3://", "s3a://")) else {}
    if options and uri.partition("://")[2][:1] in ("", "/"):
        raise BadInput(f"{uri}: names no bucket. Write s3://bucket/folder.")
    try:
        with told(uri):
            files, path = cast("tuple[Any, str]", url_to_fs(uri, **options))
    except (ImportError, ValueError) as error:
        raise BadInput(f"{uri}: {error}. Use a path or s3://, or install what this URI needs.") from error
    if options:
        files.retries = S3_ROUNDS
    return files, path


class ObjectStore:
    """A folder in an object store, reached through fsspec."""

    def __init__(self, uri: str, path: str, files: Any) -> None:
        """Take the folder's URI, and its path in the file system `files`."""
        self.uri = uri
        self._path = path
        self._files = files

    def at(self, key: str) -> str:
        """The object's URI."""
        return f"{self.uri}/{key}"

    def read(self, key: str) -> bytes:
        """The whole object. Raises Missing."""
        with told(self.at(key)):
            # From byte 0 on: without a start, s3fs asks for the size first, and cannot tell a missing bucket then.
            return cast("bytes", self._files.cat_file(f"{self._path}/{key}", start=0))

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """The object for reading in pieces. Raises Missing."""
        with told(self.at(key)), self._files.open(f"{self._path}/{key}", "rb", cache_type="none") as file:
            yield file

    def exists(self, key: str) -> bool:
        """Whether the object is there: reads its first byte, since asking for its details may list."""
        with told(self.at(key)):
            try:
                self._files.cat_file(f"{self._path}/{key}", start=0, end=1)
            except FileNotFoundError as error:
                if code(error) == "NoSuchBucket":
                    raise
                return False
            return True

    def create(self, key: str, data: bytes) -> bool:
        """Write the object on condition that its name is free; False where it was taken."""
        with told(self.at(key)):
            for attempt in range(CONFLICT_TRIES):
                try:
                    self._write(key, data, mode="create")
                except FileExistsError:
                    return False
                except OSError as error:
                    # An upload in pieces whose last answer was lost is gone when it is completed again.
                    if code(error) in TAKEN or (code(error) == "NoSuchUpload" and self.exists(key)):
                        return False
                    if code(error) != "ConditionalRequestConflict" or attempt == CONFLICT_TRIES - 1:
                        raise
                    time.sleep(0.2 * 2**attempt)
                else:
                    return True
        return False

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, over what was there."""
        with told(self.at(key)):
            self._write(key, data, mode="overwrite")

    def remove(self, key: str) -> None:
        """Delete the object."""
        with told(self.at(key)):
            self._files.rm_file(f"{self._path}/{key}")

    def _write(self, key: str, data: bytes, mode: str) -> None:
        path = f"{self._path}/{key}"
        if self._files.async_impl:
            self._files.pipe_file(path, data, mode=mode, timeout=WRITE_SECONDS + len(data) * SLOWEST_WRITE)
        elif type(self._files).pipe_file is AbstractFileSystem.pipe_file:
            # Its way to create is to look first and write then. That is no condition and must not pass for one.
            self._files.pipe_file(path, data)
        else:
            self._files.pipe_file(path, data, mode=mode)
