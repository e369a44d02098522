"""Where a run lives: whole objects under one folder, created at most once.

The only module that knows fsspec. Nothing is renamed and nothing is listed to find out what is done: `list` is for
finding out what may go.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from imagekiln.steps.errors import BadInput, NotInstalled
from imagekiln.steps.storage.failures import error_code, translate_errors
from imagekiln.steps.storage.store import ObjectInfo, is_plain_name

# An endpoint that cannot be reached is given up within a minute.
S3_OPTIONS = {
    "use_listings_cache": False,
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 10,  # between two bytes, not for the whole answer
        "retries": {
            "mode": "standard",
            "total_max_attempts": 6,
        },  # waits 1, 2, 4, 8, 16 s at most, half on average
    },
}
S3FS_ATTEMPTS = 2  # s3fs tries again on its own after botocore gave up: five times, and for reading five times five
# What a call may take in all, retries included. Without it, a write to a peer that says nothing would wait for ever.
CALL_TIMEOUT_SECONDS = 60.0
READ_TIMEOUT_SECONDS = 180.0
WRITE_SECONDS_PER_BYTE = 1 / 2**20  # seconds a byte
# Up to 5 GiB, S3's own limit, go in one conditional PUT. Of two uploads in pieces that end together, not every store
# makes one fail.
S3_SINGLE_PUT_OPTIONS = {"chunksize": 5 * 2**30}
CONFLICT_ATTEMPTS = 5
PRECONDITION_FAILED = {"PreconditionFailed", "412"}
INVALID_RANGE = {
    "InvalidRange",
    "416",
}  # what is said of the first bytes of an object that has none


def open_filesystem(uri: str) -> tuple[Any, str]:
    """The fsspec file system of a URI, and the path in it. (fsspec has no types.)"""
    options = S3_OPTIONS if uri.startswith(("s3://", "s3a://")) else {}
    if options and uri.partition("://")[2][:1] in ("", "/"):
        raise BadInput(f"{uri}: names no bucket. Write s3://bucket/folder.")
    try:
        with translate_errors(uri):
            files, path = cast("tuple[Any, str]", url_to_fs(uri, **options))
    except (ImportError, ValueError) as error:
        kind = NotInstalled if isinstance(error, ImportError) else BadInput
        raise kind(
            f"{uri}: {error}. Use a path or s3://, or install what this URI needs."
        ) from error
    if options:
        files.retries = S3FS_ATTEMPTS
    return files, path


class ObjectStore:
    """A folder in an object store, reached through fsspec."""

    def __init__(self, uri: str, path: str, files: Any) -> None:
        """Take the folder's URI, and its path in the file system `files`."""
        self.uri = uri
        self._path = path
        self._files = files

    def uri_of(self, key: str) -> str:
        """The object's URI."""
        return f"{self.uri}/{key}"

    def read(self, key: str) -> bytes:
        """The whole object. Raises Missing."""
        with translate_errors(self.uri_of(key)):
            # From byte 0 on: without a start, s3fs asks for the size first, and cannot tell a missing bucket then.
            return cast(
                "bytes",
                self._files.cat_file(
                    f"{self._path}/{key}", start=0, **self._timeout_argument(READ_TIMEOUT_SECONDS)
                ),
            )

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """The object for reading in pieces. Raises Missing."""
        with (
            translate_errors(self.uri_of(key)),
            self._files.open(f"{self._path}/{key}", "rb", cache_type="none") as file,
        ):
            yield file

    def read_prefix(self, key: str, most: int) -> bytes:
        """The object's first bytes, at most so many. Raises Missing."""
        with translate_errors(self.uri_of(key)):
            limit = self._timeout_argument(READ_TIMEOUT_SECONDS)
            try:
                return cast(
                    "bytes", self._files.cat_file(f"{self._path}/{key}", start=0, end=most, **limit)
                )
            except OSError as error:
                if error_code(error) not in INVALID_RANGE:
                    raise
                return b""

    def exists(self, key: str) -> bool:
        """Whether the object is there: reads its first byte, since asking for its details may list."""
        with translate_errors(self.uri_of(key)):
            try:
                self._files.cat_file(
                    f"{self._path}/{key}",
                    start=0,
                    end=1,
                    **self._timeout_argument(CALL_TIMEOUT_SECONDS),
                )
            except FileNotFoundError as error:
                if error_code(error) == "NoSuchBucket":
                    raise
                return False
            return True

    def create(self, key: str, data: bytes) -> bool:
        """Write the object on condition that its name is free; False where it was taken."""
        with translate_errors(self.uri_of(key)):
            for attempt in range(CONFLICT_ATTEMPTS):
                try:
                    self._write(key, data, mode="create")
                except FileExistsError:
                    return False
                except OSError as error:
                    if error_code(error) in PRECONDITION_FAILED:
                        return False
                    if (
                        error_code(error) != "ConditionalRequestConflict"
                        or attempt == CONFLICT_ATTEMPTS - 1
                    ):
                        raise
                    time.sleep(0.2 * 2**attempt)
                else:
                    return True
        return False

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, over what was there."""
        with translate_errors(self.uri_of(key)):
            self._write(key, data, mode="overwrite")

    def remove(self, key: str) -> None:
        """Delete the object."""
        with translate_errors(self.uri_of(key)):
            self._files.rm_file(
                f"{self._path}/{key}", **self._timeout_argument(CALL_TIMEOUT_SECONDS)
            )

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """What lies in a folder. Keys that only look like being in it, by way of dots or slashes, are left out."""
        path = f"{self._path}/{folder}".rstrip("/")
        with translate_errors(self.uri_of(folder)):
            try:
                found = self._files.ls(
                    path, detail=True, refresh=True, **self._timeout_argument(READ_TIMEOUT_SECONDS)
                )
            except FileNotFoundError as error:
                if error_code(error) == "NoSuchBucket":
                    raise
                return
        for each in found:
            above, _, name = str(each["name"]).rstrip("/").rpartition("/")
            if above == path.lstrip("/") and is_plain_name(name):
                key = f"{folder}/{name}" if folder else name
                yield ObjectInfo(
                    key,
                    each["type"] == "directory",
                    int(each.get("size") or 0),
                    _modification_time(each),
                )

    def remove_folder(self, folder: str) -> None:
        """Do nothing: folders are parts of names."""

    def _write(self, key: str, data: bytes, mode: str) -> None:
        if (
            not self._files.async_impl
            and type(self._files).pipe_file is AbstractFileSystem.pipe_file
        ):
            # Its way to create is to look first and write then. That is no condition and must not pass for one.
            mode = "overwrite"
        whole = S3_SINGLE_PUT_OPTIONS if "s3" in self._files.protocol else {}
        limit = self._timeout_argument(CALL_TIMEOUT_SECONDS + len(data) * WRITE_SECONDS_PER_BYTE)
        self._files.pipe_file(f"{self._path}/{key}", data, mode=mode, **whole, **limit)

    def _timeout_argument(self, seconds: float) -> dict[str, float]:
        """The argument that limits a call's time; only fsspec's asynchronous file systems know it."""
        return {"timeout": seconds} if self._files.async_impl else {}


def _modification_time(found: dict[str, Any]) -> float | None:
    """When an object was written, in seconds since 1970, by whatever name its file system has for it."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = found.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
