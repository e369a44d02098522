"""A folder of objects in a bucket, or wherever else fsspec reaches: the only module that knows it.

No object is renamed, and none are listed to learn what is done: listing is for what may be deleted.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from fsspec import AbstractFileSystem

from imagekiln.steps.storage.failures import error_code, is_object_absent, translate_errors
from imagekiln.steps.storage.filesystem import (
    READ_TIMEOUT_SECONDS,
    modification_time,
    open_in_pieces,
)
from imagekiln.steps.storage.store import ObjectInfo, is_plain_name, require_plain_key

# Limits of one call, retries included: a peer that says nothing must not block a write for ever.
CALL_TIMEOUT_SECONDS = 60.0
WRITE_SECONDS_PER_BYTE = 1 / 2**20
# One conditional PUT up to S3's limit of 5 GiB: when two multipart uploads end at the same time,
# not every store lets one of them fail.
S3_SINGLE_PUT_OPTIONS = {"chunksize": 5 * 2**30}
CONFLICT_ATTEMPTS = 5
CONFLICT_SECONDS = 0.2  # before the second attempt, doubled before each further one
CONFLICT = "ConditionalRequestConflict"
PRECONDITION_FAILED = {"PreconditionFailed", "412"}
INVALID_RANGE = {"InvalidRange", "416"}  # of an empty object, which has no first byte


class ObjectStore:
    """A folder in an object store, reached through fsspec."""

    def __init__(self, uri: str, path: str, files: Any) -> None:
        """Take the folder's URI, and its path in the file system `files`."""
        self.uri = uri
        self._path = path
        self._files = files
        self._is_s3 = "s3" in files.protocol

    def uri_of(self, key: str) -> str:
        """The object's URI."""
        return f"{self.uri}/{key}"

    def read(self, key: str) -> bytes:
        """The whole object. Raises Missing."""
        with translate_errors(self.uri_of(key), "read"):
            return self._read_range(key, None, READ_TIMEOUT_SECONDS)

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """The object for reading in pieces. Raises Missing."""
        with (
            translate_errors(self.uri_of(key), "read"),
            open_in_pieces(self._files, self._path_of(key), cache_type="none") as file,
        ):
            yield file

    def read_prefix(self, key: str, most: int) -> bytes:
        """The object's first `most` bytes, or fewer if it has fewer. Raises Missing."""
        with translate_errors(self.uri_of(key), "read"):
            return self._read_range(key, most, READ_TIMEOUT_SECONDS)

    def exists(self, key: str) -> bool:
        """Say if the object exists: reads its first byte, since asking for its size may list."""
        with translate_errors(self.uri_of(key), "read"):
            try:
                self._read_range(key, 1, CALL_TIMEOUT_SECONDS)
            except FileNotFoundError as error:
                if not is_object_absent(error):
                    raise
                return False
            return True

    def create(self, key: str, data: bytes) -> bool:
        """Write the object on condition that it does not exist; False if it does."""
        with translate_errors(self.uri_of(key), "write"):
            for attempt in range(CONFLICT_ATTEMPTS - 1):
                try:
                    return self._try_create(key, data)
                except OSError as error:
                    if error_code(error) != CONFLICT:
                        raise
                time.sleep(CONFLICT_SECONDS * 2**attempt)
            return self._try_create(key, data)

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, in place of an earlier one."""
        with translate_errors(self.uri_of(key), "write"):
            self._write(key, data, mode="overwrite")

    def remove(self, key: str) -> None:
        """Delete the object, unless it is absent."""
        with translate_errors(self.uri_of(key), "remove"):
            self._files.rm_file(self._path_of(key), **self._timeout(CALL_TIMEOUT_SECONDS))

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """The objects and folders in a folder, without keys that dots or slashes lead elsewhere."""
        path = self._path_of(folder).rstrip("/")
        with translate_errors(self.uri_of(folder), "list"):
            try:
                timeout = self._timeout(READ_TIMEOUT_SECONDS)
                entries = self._files.ls(path, detail=True, refresh=True, **timeout)
            except FileNotFoundError as error:
                if not is_object_absent(error):
                    raise
                return

        for entry in entries:
            parent, _, name = str(entry["name"]).rstrip("/").rpartition("/")
            if parent == path.lstrip("/") and is_plain_name(name):
                key = f"{folder}/{name}" if folder else name
                is_folder = entry["type"] == "directory"
                size = int(entry.get("size") or 0)
                yield ObjectInfo(key, is_folder, size, modification_time(entry))

    def remove_folder(self, folder: str) -> None:
        """Do nothing: a folder is only part of the names of its objects."""

    def _path_of(self, key: str) -> str:
        require_plain_key(self.uri, key)
        return f"{self._path}/{key}"

    def _read_range(self, key: str, end: int | None, timeout: float) -> bytes:
        try:
            content = self._files.cat_file(
                self._path_of(key), start=0, end=end, **self._timeout(timeout)
            )
        except OSError as error:
            if error_code(error) in INVALID_RANGE:
                return b""
            raise
        return cast("bytes", content)[:end]  # many web servers know no ranges

    def _try_create(self, key: str, data: bytes) -> bool:
        try:
            self._write(key, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if error_code(error) in PRECONDITION_FAILED:
                return False
            raise
        return True

    def _write(self, key: str, data: bytes, mode: str) -> None:
        if not self._creates_conditionally():
            mode = "overwrite"
        timeout = self._timeout(CALL_TIMEOUT_SECONDS + len(data) * WRITE_SECONDS_PER_BYTE)
        options = _put_options(key) if self._is_s3 else {}
        self._files.pipe_file(self._path_of(key), data, mode=mode, **options, **timeout)

    def _creates_conditionally(self) -> bool:
        """Return whether the file system has its own way to create.

        fsspec's default looks first and then writes: that is not a condition, and must not pass for
        one.
        """
        has_default = type(self._files).pipe_file is AbstractFileSystem.pipe_file
        return self._files.async_impl or not has_default

    def _timeout(self, seconds: float) -> dict[str, float]:
        """The argument that limits a call; only asynchronous file systems of fsspec have it."""
        return {"timeout": seconds} if self._files.async_impl else {}


def _put_options(key: str) -> dict[str, object]:
    """Options for S3 to store an object of this name."""
    if key.endswith(".html"):  # without a type, browsers save a page in place of showing it
        return {**S3_SINGLE_PUT_OPTIONS, "ContentType": "text/html; charset=utf-8"}
    return dict(S3_SINGLE_PUT_OPTIONS)
