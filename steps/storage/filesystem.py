"""Object stores that fsspec reaches: S3 client settings, refused schemes, conditional writes.

Objects are never renamed. Listings are for deletion, and do not decide what is done.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, cast

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from imagekiln.steps.errors import BadInput, NotInstalled, first_line
from imagekiln.steps.runtime.metrics import STORAGE_RETRIES
from imagekiln.steps.runtime.sanitize import holds_credentials, redact_uri
from imagekiln.steps.storage.failures import error_code, is_object_absent, translate_errors
from imagekiln.steps.storage.store import ObjectInfo, is_plain_name, require_plain_key

# An unreachable endpoint is given up within a minute.
S3_OPTIONS = {
    "use_listings_cache": False,
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 10,  # between two bytes, not for the whole response
        # Waits of at most 1, 2, 4, 8 and 16 s, half of that on average.
        "retries": {"mode": "standard", "total_max_attempts": 6},
    },
}
# s3fs retries after botocore gave up: by default five times, and 25 times for reads.
S3FS_ATTEMPTS = 2
# The limit of one read, retries included.
READ_TIMEOUT_SECONDS = 180.0
WEB_SILENCE_SECONDS = 30.0  # until a silent web server is given up
# Limits of one call, retries included, so that a silent peer cannot block a write.
CALL_TIMEOUT_SECONDS = 60.0
WRITE_SECONDS_PER_BYTE = 1 / 2**20
# One conditional PUT up to S3's limit of 5 GiB. If two multipart uploads end at the same time, some
# stores accept both.
S3_SINGLE_PUT_OPTIONS = {"chunksize": 5 * 2**30}
CONFLICT_ATTEMPTS = 5
CONFLICT_SECONDS = 0.2  # before the second attempt, doubled after each
CONFLICT = "ConditionalRequestConflict"
PRECONDITION_FAILED = {"PreconditionFailed", "412"}
INVALID_RANGE = {"InvalidRange", "416"}  # for an empty object, which has no first byte
# fsspec file systems that wrap others, reach this machine or its network, or need more than a URI.
REFUSED_SCHEMES = {
    *("adl", "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "dask", "data"),
    *("dbfs", "dir", "filecache", "ftp", "generic", "git", "jlab", "jupyter", "libarchive"),
    *("local", "pyscript", "reference", "simplecache", "tar", "webhdfs", "zip"),
}
S3_SCHEMES = ("s3", "s3a")
WEB_SCHEMES = ("http", "https")
# Extras of this package that install a scheme's file system.
EXTRAS = {"gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}


def open_filesystem(uri: str, endpoint: str | None = None) -> tuple[Any, str]:
    """Return the fsspec file system of a URI, which is untyped, and the path in it.

    `endpoint` is the URL of an S3 store other than the environment's.
    """
    scheme = uri.partition("://")[0].lower()
    _refuse_unsafe_uri(uri, scheme)
    try:
        with translate_errors(uri):
            options = _filesystem_options(scheme, endpoint)
            files, path = cast("tuple[Any, str]", url_to_fs(uri, **options))
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        remedy = f"pip install 'imagekiln[{extra}]'" if extra else "install what this URI needs"
        raise NotInstalled(
            f"{uri}: {error}. Type: {remedy}. Container images have it after a build with EXTRAS."
        ) from error
    except ValueError as error:  # an unknown scheme, or an incomplete URI
        reason = first_line(str(error)).rstrip(".")
        raise BadInput(f"{uri}: {reason}. Use a path, s3:// or https://.") from error
    if scheme in S3_SCHEMES:
        files.retries = S3FS_ATTEMPTS
        _watch_requests(files)
    return files, path


def _filesystem_options(scheme: str, endpoint: str | None) -> dict[str, object]:
    options: dict[str, object] = dict(S3_OPTIONS) if scheme in S3_SCHEMES else {}
    if endpoint is not None:
        options["endpoint_url"] = endpoint
    if scheme in WEB_SCHEMES:
        from aiohttp import ClientTimeout

        # The default limit of five minutes per response would end the download of any large table.
        silence = ClientTimeout(
            total=None, sock_connect=WEB_SILENCE_SECONDS, sock_read=WEB_SILENCE_SECONDS
        )
        options["client_kwargs"] = {"timeout": silence}
    return options


def _refuse_unsafe_uri(uri: str, scheme: str) -> None:
    if holds_credentials(uri):
        raise BadInput(
            f"{redact_uri(uri)}: contains credentials, which logs and plans would show. Set them "
            "in the environment; copy a file that has a signed URL to a disk or a bucket."
        )
    if "::" in uri or scheme in REFUSED_SCHEMES:
        raise BadInput(f"{uri}: is not read from. Use a path, s3:// or https://.")
    place = uri.partition("://")[2]
    if scheme in (*S3_SCHEMES, *WEB_SCHEMES) and place[:1] in ("", "/"):
        raise BadInput(f"{uri}: names no bucket or host. Write s3://bucket/a or https://host/a.")


def _watch_requests(files: Any) -> None:
    """Make s3fs count repeated requests."""
    if files.session is not None:  # s3fs caches file systems and returns the same one
        return
    from aiobotocore.session import AioSession

    def count(attempts: int, **_: object) -> None:
        if attempts > 1:
            STORAGE_RETRIES.add()

    session = AioSession(**files.kwargs)
    session.register("needs-retry.s3", count)
    files.session = session  # last, since other threads use it once it is set


@contextmanager
def open_object(uri: str, block_bytes: int) -> Iterator[BinaryIO]:
    """Open the file at a URI for reading in blocks of this size. Raises fsspec's errors."""
    files, path = open_filesystem(uri)
    with open_in_pieces(files, path, block_size=block_bytes) as file:
        yield file


@contextmanager
def open_in_pieces(files: Any, path: str, **options: object) -> Iterator[BinaryIO]:
    """Open a file of an fsspec file system for reading in blocks."""
    try:
        opened = files.open(path, "rb", **options)
    except OSError as error:
        if error_code(error).isdigit():  # S3 gives the reason of a refusal for GET, not for HEAD
            files.cat_file(path, start=0, end=1)
        raise
    with opened as file:
        yield file


def modification_time(entry: dict[str, Any]) -> float | None:
    """Return the modification time, in seconds since 1970, from the key of any file system."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = entry.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


class ObjectStore:
    """Folder in an object store, reached through fsspec."""

    def __init__(self, uri: str, path: str, files: Any) -> None:
        """Take the folder's URI, and its path in the file system `files`."""
        self.uri = uri
        self._path = path
        self._files = files
        self._is_s3 = "s3" in files.protocol

    def uri_of(self, key: str) -> str:
        """Return the object's URI."""
        return f"{self.uri}/{key}"

    def read(self, key: str) -> bytes:
        """Read the whole object. Raises Missing."""
        with translate_errors(self.uri_of(key), "read"):
            return self._read_range(key, None, READ_TIMEOUT_SECONDS)

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """Open the object for reading in blocks. Raises Missing."""
        with (
            translate_errors(self.uri_of(key), "read"),
            open_in_pieces(self._files, self._path_of(key), cache_type="none") as file,
        ):
            yield file

    def read_prefix(self, key: str, most: int) -> bytes:
        """Read at most the first `most` bytes of the object. Raises Missing."""
        with translate_errors(self.uri_of(key), "read"):
            return self._read_range(key, most, READ_TIMEOUT_SECONDS)

    def exists(self, key: str) -> bool:
        """Read the object's first byte to see if it exists, since asking for its size may list."""
        with translate_errors(self.uri_of(key), "read"):
            try:
                self._read_range(key, 1, CALL_TIMEOUT_SECONDS)
            except FileNotFoundError as error:
                if not is_object_absent(error):
                    raise
                return False
            return True

    def create(self, key: str, data: bytes) -> bool:
        """Create the object. Return False if it exists already."""
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
        """Write the whole object, replacing an earlier one."""
        with translate_errors(self.uri_of(key), "write"):
            self._write(key, data, mode="overwrite")

    def remove(self, key: str) -> None:
        """Delete the object if it exists."""
        with translate_errors(self.uri_of(key), "remove"):
            self._files.rm_file(self._path_of(key), **self._timeout(CALL_TIMEOUT_SECONDS))

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield the objects and folders in a folder, except keys that lead out of it."""
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
        """Do nothing: folders exist only as part of object keys."""

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
        return cast("bytes", content)[:end]  # many web servers ignore ranges

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
        """Return whether the file system can create conditionally.

        fsspec's default checks first and then writes, which is not atomic.
        """
        has_default = type(self._files).pipe_file is AbstractFileSystem.pipe_file
        return self._files.async_impl or not has_default

    def _timeout(self, seconds: float) -> dict[str, float]:
        """Return the time limit of a call. Only asynchronous fsspec file systems take one."""
        return {"timeout": seconds} if self._files.async_impl else {}


def _put_options(key: str) -> dict[str, object]:
    """Return the S3 options for storing an object with this key."""
    if key.endswith(".html"):  # otherwise, browsers download a page instead of showing it
        return {**S3_SINGLE_PUT_OPTIONS, "ContentType": "text/html; charset=utf-8"}
    return dict(S3_SINGLE_PUT_OPTIONS)
