"""A folder of objects in a bucket, or wherever else fsspec reaches: the only module that knows it.

No object is renamed, and none are listed to learn what is done: listing is for what may be deleted.
"""

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from imagekiln.steps.errors import BadInput, NotInstalled, TryAgain, first_line
from imagekiln.steps.runtime.metrics import STORAGE_RETRIES
from imagekiln.steps.runtime.sanitize import holds_credentials, redact_uri
from imagekiln.steps.storage.failures import error_code, is_expiry, translate_errors
from imagekiln.steps.storage.s3_reader import (
    LOOKUP_FIELDS,
    ByteRange,
    S3File,
    S3Reader,
    confirm_lookup,
)
from imagekiln.steps.storage.store import ObjectInfo, is_plain_name, require_plain_key
from imagekiln.steps.storage.web_client import open_web_client

# An endpoint that cannot be reached is given up within a minute.
S3_OPTIONS = {
    "use_listings_cache": False,
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 10,  # between two bytes, not for the whole answer
        # The waits are 1, 2, 4, 8, 16 s at most, half of that on average.
        "retries": {"mode": "standard", "total_max_attempts": 6},
    },
}
# s3fs tries again after botocore gave up: by default five times, and to read five times five.
S3FS_ATTEMPTS = 2
# Limits of one call, retries included: a peer that says nothing must not block a write for ever.
CALL_TIMEOUT_SECONDS = 60.0
READ_TIMEOUT_SECONDS = 180.0
WRITE_SECONDS_PER_BYTE = 1 / 2**20
# One conditional PUT up to S3's limit of 5 GiB: when two multipart uploads end at the same time,
# not every store lets one of them fail.
S3_SINGLE_PUT_OPTIONS = {"chunksize": 5 * 2**30}
# Without a type, browsers save a page in place of showing it.
PAGE_SUFFIX = ".html"
PAGE_TYPE = "text/html; charset=utf-8"
CONFLICT_ATTEMPTS = 5
CONFLICT_SECONDS = 0.2  # before the second attempt, doubled before each further one
CONFLICT = "ConditionalRequestConflict"
# File systems of fsspec's that wrap others, lead by other ways to what is on this machine or its
# network, or take more than a URI.
REFUSED_SCHEMES = {
    *("adl", "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "dask", "data"),
    *("dbfs", "dir", "filecache", "ftp", "generic", "git", "jlab", "jupyter", "libarchive"),
    *("local", "pyscript", "reference", "simplecache", "tar", "webhdfs", "zip"),
}
# The extras of this package that install a scheme's file system.
EXTRAS = {"gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}
EXTRA_MODULES = {"gcs": "gcsfs", "azure": "adlfs"}
PRECONDITION_FAILED = {"PreconditionFailed", "412"}
# Of a store that has conditions for new objects only.
NOT_IMPLEMENTED = {"NotImplemented", "501"}
NO_CONDITION: Mapping[str, str] = MappingProxyType({})
# What every answer of S3 has, and that of a gateway in its place lacks.
WRITTEN_FIELD = "ETag"
LISTED_FIELD = "Name"
LISTED_AT_ONCE = 1000
# With which S3 answers a DELETE. Pages of gateways have another.
NO_CONTENT = 204


def open_filesystem(uri: str, endpoint: str | None = None) -> tuple[Any, str]:
    """The fsspec file system of a URI, which has no types, and the path in it.

    `endpoint` is that of an S3 store other than the environment's.
    """
    is_s3 = uri.startswith(("s3://", "s3a://"))
    if is_s3 and uri.partition("://")[2][:1] in ("", "/"):
        raise BadInput(f"{uri}: names no bucket. Write s3://bucket/folder.")

    scheme = uri.partition("://")[0].lower()
    _refuse_unsafe_uri(uri, scheme)
    extra = EXTRAS.get(scheme)
    remedy = "Use a path or s3://, or install what this URI needs."
    options = _filesystem_options(scheme, endpoint)
    try:
        with translate_errors(uri):
            files, path = cast("tuple[Any, str]", url_to_fs(uri, **options))
    except ImportError as error:
        if extra is not None:
            raise NotInstalled(_describe_extra(uri, scheme, extra)) from error
        raise NotInstalled(f"{uri}: {error}. {remedy}") from error
    except (ValueError, TypeError) as error:
        # Of an unknown scheme, or of a part that the URI lacks. What we pass ourselves is right.
        if options and isinstance(error, TypeError):
            raise
        raise BadInput(f"{uri}: {first_line(str(error)).rstrip('.')}. {remedy}") from error

    if is_s3:
        files.retries = S3FS_ATTEMPTS
        _watch_requests(files)
    return files, path


def _filesystem_options(scheme: str, endpoint: str | None) -> dict[str, object]:
    options: dict[str, object] = dict(S3_OPTIONS) if scheme in ("s3", "s3a") else {}
    if endpoint is not None:
        options["endpoint_url"] = endpoint
    if scheme in ("http", "https"):
        options["get_client"] = open_web_client
    return options


def describe_missing_extra(uri: str) -> str | None:
    """Which extra of this package is to be installed for a URI; None where nothing lacks."""
    scheme = uri.partition("://")[0].lower()
    extra = EXTRAS.get(scheme)
    if extra is None or find_spec(EXTRA_MODULES[extra]) is not None:
        return None
    return _describe_extra(uri, scheme, extra)


def _describe_extra(uri: str, scheme: str, extra: str) -> str:
    return (
        f"{uri}: {scheme}:// needs an extra: pip install 'imagekiln[{extra}]'. "
        "Container images have it after a build with EXTRAS."
    )


def _refuse_unsafe_uri(uri: str, scheme: str) -> None:
    if holds_credentials(uri):
        raise BadInput(
            f"{redact_uri(uri)}: contains credentials, which logs and plans would show. Set them "
            "in the environment; copy a file that has a signed URL to a disk or a bucket."
        )
    if "::" in uri:
        raise BadInput(f"{uri}: names several file systems, by `::`. Name the file itself.")
    if "://" in uri and scheme in REFUSED_SCHEMES:
        raise BadInput(f"{uri}: {scheme}:// is not read from. Use a path, s3:// or https://.")
    if scheme in ("http", "https"):
        _refuse_malformed_url(uri)


def _refuse_malformed_url(uri: str) -> None:
    try:
        parts = urlsplit(uri)
        has_host = bool(parts.hostname and parts.hostname.encode("idna") and parts.port != 0)
    except ValueError:
        has_host = False
    if not has_host:
        raise BadInput(f"{uri}: is no URL. Write https://host/file.")


def _watch_requests(files: Any) -> None:
    """Have s3fs count repeated requests, and repeat once what looks objects up and finds none."""
    if files.session is not None:  # s3fs keeps a file system for all that ask for the same one
        return
    from aiobotocore.session import AioSession

    def count(attempts: int, **_: object) -> None:
        if attempts > 1:
            STORAGE_RETRIES.add()

    files.session = AioSession(**files.kwargs)
    files.session.register("needs-retry.s3", count)
    for operation in LOOKUP_FIELDS:
        files.session.register(f"needs-retry.s3.{operation}", confirm_lookup)


@contextmanager
def open_object(uri: str, block_bytes: int) -> Iterator[BinaryIO]:
    """A file at a URI for reading in pieces, of about so many bytes. Raises what fsspec raises.

    Of S3, each answer is compared with what the store says of the object.
    """
    files, path = open_filesystem(uri)
    if "s3" in files.protocol:
        yield cast("BinaryIO", S3File(S3Reader(files), path, READ_TIMEOUT_SECONDS))
        return
    with files.open(path, "rb", block_size=block_bytes) as file:
        yield file


class ObjectStore:
    """A folder in an object store, reached through fsspec."""

    def __init__(self, uri: str, path: str, files: Any) -> None:
        """Take the folder's URI, and its path in the file system `files`."""
        self.uri = uri
        self._path = path
        self._files = files
        self._s3_reader = S3Reader(files) if "s3" in files.protocol else None

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
        with translate_errors(self.uri_of(key), "read"), self._open(key) as file:
            yield file

    def read_prefix(self, key: str, most: int) -> bytes:
        """The object's first `most` bytes, or fewer where it has fewer. Raises Missing."""
        with translate_errors(self.uri_of(key), "read"):
            return self._read_range(key, most, READ_TIMEOUT_SECONDS)

    def exists(self, key: str) -> bool:
        """Whether the object exists: reads its first byte, since asking for its size may list."""
        with translate_errors(self.uri_of(key), "read"):
            try:
                self._read_range(key, 1, CALL_TIMEOUT_SECONDS)
            except FileNotFoundError as error:
                if error_code(error) == "NoSuchBucket":
                    raise
                return False
            return True

    def create(self, key: str, data: bytes) -> bool:
        """Write the object on condition that it does not exist; False where it does."""
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

    def replace_after(self, check: Callable[[], None], key: str, data: bytes) -> None:
        """Write the object whole, in place of the one that was there when `check` was called.

        Where an answer is lost, a second request meets what the first has written, and the check
        is made again.
        """
        if self._s3_reader is None:
            check()
            self.replace(key, data)
            return
        for attempt in range(CONFLICT_ATTEMPTS):
            if attempt:
                time.sleep(CONFLICT_SECONDS * 2 ** (attempt - 1))
            condition = self._unchanged(self._s3_reader, key)
            check()
            with translate_errors(self.uri_of(key), "write"):
                if self._try_replace(key, data, condition):
                    return
        raise TryAgain(
            f"{self.uri_of(key)}: other processes write it all the time. Run the command again "
            "once they have ended."
        )

    def remove(self, key: str) -> None:
        """Delete the object, unless it is absent."""
        with translate_errors(self.uri_of(key), "remove"):
            timeout = self._timeout(CALL_TIMEOUT_SECONDS)
            if self._s3_reader is None:
                _confirm_refusal(lambda: self._files.rm_file(self._path_of(key), **timeout))
            elif not (self._try_delete(key, timeout) or self._try_delete(key, timeout)):
                raise OSError(errno.EIO, "it is still there, though a gateway reports its removal")

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """The objects and folders in a folder, without keys that dots or slashes lead elsewhere."""
        path = self._path_of(folder).rstrip("/")
        with translate_errors(self.uri_of(folder), "list"):
            try:
                entries = self._list_entries(path)
            except FileNotFoundError as error:
                if self._s3_reader is not None or error_code(error) == "NoSuchBucket":
                    raise  # S3 lists nothing of a folder that is absent
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

    def _try_delete(self, key: str, timeout: dict[str, float]) -> bool:
        """Delete an object of S3; False where it is still there. A gateway may have answered."""
        bucket, name, _ = self._files.split_path(self._path_of(key))
        request = {"Bucket": bucket, "Key": name}
        answer = _confirm_refusal(
            partial(self._files.call_s3, "delete_object", **request, **timeout)
        )
        return _http_status(answer) == NO_CONTENT or not self.exists(key)

    def _list_entries(self, path: str) -> list[dict[str, Any]]:
        timeout = self._timeout(READ_TIMEOUT_SECONDS)
        if self._s3_reader is None:
            entries = self._files.ls(path, detail=True, refresh=True, **timeout)
            return cast("list[dict[str, Any]]", entries)
        bucket, key, _ = self._files.split_path(path)
        prefix = f"{key}/" if key else ""
        request = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/", "MaxKeys": LISTED_AT_ONCE}
        return list(_iter_listing(self._files, request, timeout))

    def _path_of(self, key: str) -> str:
        require_plain_key(self.uri, key)
        return f"{self._path}/{key}"

    def _open(self, key: str) -> BinaryIO:
        path = self._path_of(key)
        if self._s3_reader is None:
            return cast("BinaryIO", self._files.open(path, "rb", cache_type="none"))
        return cast("BinaryIO", S3File(self._s3_reader, path, READ_TIMEOUT_SECONDS))

    def _read_range(self, key: str, end: int | None, timeout: float) -> bytes:
        path = self._path_of(key)
        if self._s3_reader is None:
            content = self._files.cat_file(path, start=0, end=end, **self._timeout(timeout))
            return cast("bytes", content)
        return self._s3_reader.read(path, ByteRange(end=end), timeout).content

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

    def _unchanged(self, reader: S3Reader, key: str) -> dict[str, str]:
        """The condition of S3 that the object is as it is now, or is still absent."""
        with translate_errors(self.uri_of(key), "read"):
            try:
                one_byte = ByteRange(end=1)
                etag = reader.read(self._path_of(key), one_byte, CALL_TIMEOUT_SECONDS).etag
            except FileNotFoundError as error:
                if error_code(error) == "NoSuchBucket":
                    raise
                return {"IfNoneMatch": "*"}
            return {"IfMatch": f'"{etag}"'} if etag else {}

    def _try_replace(self, key: str, data: bytes, condition: Mapping[str, str]) -> bool:
        try:
            self._write(key, data, mode="overwrite", condition=condition)
        except (OSError, NotImplementedError) as error:
            if error_code(error) in NOT_IMPLEMENTED:
                self._write(key, data, mode="overwrite")
                return True
            if error_code(error) not in {*PRECONDITION_FAILED, CONFLICT}:
                raise
            return False
        return True

    def _write(
        self, key: str, data: bytes, mode: str, condition: Mapping[str, str] = NO_CONDITION
    ) -> None:
        if not self._creates_conditionally():
            mode = "overwrite"
        timeout = self._timeout(CALL_TIMEOUT_SECONDS + len(data) * WRITE_SECONDS_PER_BYTE)
        options = {} if self._s3_reader is None else {**_put_options(key), **condition}
        path = self._path_of(key)

        def write() -> object:
            return self._files.pipe_file(path, data, mode=mode, **options, **timeout)

        if self._s3_reader is None:
            _confirm_refusal(write)
        else:
            _confirm_refusal(lambda: _confirm_answer(write, WRITTEN_FIELD))

    def _creates_conditionally(self) -> bool:
        """Whether the file system has its own way to create.

        fsspec's default looks first and then writes: that is not a condition, and must not pass for
        one.
        """
        has_default = type(self._files).pipe_file is AbstractFileSystem.pipe_file
        return self._files.async_impl or not has_default

    def _timeout(self, seconds: float) -> dict[str, float]:
        """The argument that limits a call; only asynchronous file systems of fsspec have it."""
        return {"timeout": seconds} if self._files.async_impl else {}


def _put_options(key: str) -> dict[str, object]:
    """How S3 is to store an object of this name."""
    if key.endswith(PAGE_SUFFIX):
        return {**S3_SINGLE_PUT_OPTIONS, "ContentType": PAGE_TYPE}
    return dict(S3_SINGLE_PUT_OPTIONS)


def _confirm_refusal(request: Callable[[], object]) -> object:
    """The answer to a request, which is made once more where it was refused: perhaps in error."""
    try:
        return request()
    except (PermissionError, FileNotFoundError) as error:
        if is_expiry(error):
            raise
        return request()


def _http_status(answer: object) -> int | None:
    """The status of an answer of botocore's."""
    metadata = cast("Mapping[str, Any]", answer).get("ResponseMetadata", {})
    return cast("int | None", metadata.get("HTTPStatusCode"))


def _confirm_answer(request: Callable[[], object], field: str) -> object:
    """The answer to a request, which is made once more where the answer is not the store's.

    A gateway may answer in its place, with success. Raises OSError where it does so twice.
    """
    for _ in range(2):
        answer = request()
        if not isinstance(answer, Mapping) or answer.get(field):
            return answer
    raise OSError(errno.EIO, "the answer is not that of an object store")


def _iter_listing(
    files: Any, request: dict[str, object], timeout: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """The objects and folders that an S3 store lists, as fsspec has them."""
    bucket = request["Bucket"]
    while True:
        ask = partial(files.call_s3, "list_objects_v2", **request, **timeout)
        answer = _confirm_answer(partial(_confirm_refusal, ask), LISTED_FIELD)
        page = cast("Mapping[str, Any]", answer)
        for entry in page.get("CommonPrefixes", ()):
            yield {"name": f"{bucket}/{entry['Prefix']}", "type": "directory"}
        for entry in page.get("Contents", ()):
            facts = {"size": entry["Size"], "LastModified": entry["LastModified"]}
            yield {"name": f"{bucket}/{entry['Key']}", "type": "file", **facts}
        if not page.get("IsTruncated"):
            return
        token = page.get("NextContinuationToken")
        if not token:
            raise OSError(errno.EIO, "the list ends in its middle, without what continues it")
        request = request | {"ContinuationToken": token}


def modification_time(entry: dict[str, Any]) -> float | None:
    """When an object was written, in seconds since 1970. Each file system has its own key."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = entry.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
