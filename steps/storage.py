"""Where a run lives: whole objects under one folder, created at most once.

The only module that knows fsspec. Nothing is renamed and nothing is listed to find out what is done.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from fsspec.core import url_to_fs

from imagekiln.steps.disk import Disk
from imagekiln.steps.errors import BadInput
from imagekiln.steps.store_errors import code, told

# Unanswered requests end in a minute or so; s3fs and botocore retry what is worth it before that.
S3_OPTIONS = {
    "use_listings_cache": False,
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 60, "retries": {"max_attempts": 2}},
}
CONFLICT_TRIES = 5


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
    try:
        with told(uri):
            return cast("tuple[Any, str]", url_to_fs(uri, **options))
    except (ImportError, ValueError) as error:
        raise BadInput(f"{uri}: {error}. Use a path or s3://, or install what this URI needs.") from error


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
            return cast("bytes", self._files.cat_file(f"{self._path}/{key}"))

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
                    self._files.pipe_file(f"{self._path}/{key}", data, mode="create")
                except FileExistsError:
                    return False
                except OSError as error:
                    if code(error) in ("PreconditionFailed", "412"):
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
            self._files.pipe_file(f"{self._path}/{key}", data)

    def remove(self, key: str) -> None:
        """Delete the object."""
        with told(self.at(key)):
            self._files.rm_file(f"{self._path}/{key}")
