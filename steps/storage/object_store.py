"""A folder of objects in a bucket, or wherever else fsspec reaches: the only module that knows it.

No object is renamed, and none are listed to learn what is done: listing is for what may be deleted.
"""

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, cast

from fsspec import AbstractFileSystem

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.storage.failures import (
    error_code,
    is_expiry,
    is_object_absent,
    translate_errors,
)
from imagekiln.steps.storage.filesystem import READ_TIMEOUT_SECONDS, modification_time
from imagekiln.steps.storage.s3_reader import (
    ByteRange,
    S3File,
    S3Reader,
)
from imagekiln.steps.storage.store import ObjectInfo, is_plain_name, require_plain_key
from imagekiln.steps.storage.web_folder import MAX_PAGE_BYTES, list_page

# Limits of one call, retries included: a peer that says nothing must not block a write for ever.
CALL_TIMEOUT_SECONDS = 60.0
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
PRECONDITION_FAILED = {"PreconditionFailed", "412"}
ABSENT = {"NoSuchKey", "404"}  # also to the condition that an object is as it was, once it is gone
# Of a store that has conditions for new objects only.
NOT_IMPLEMENTED = {"NotImplemented", "501"}
NO_CONDITION: Mapping[str, str] = MappingProxyType({})
# What every answer of S3 has, and that of a gateway in its place lacks.
WRITTEN_FIELD = "ETag"
LISTED_FIELD = "Name"
LISTED_AT_ONCE = 1000
# With which S3 answers a DELETE. Pages of gateways have another.
NO_CONTENT = 204


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
                if not is_object_absent(error):
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
                if self._s3_reader is not None or not is_object_absent(error):
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
        if self._is_web:
            page = self._read_web_prefix(path, MAX_PAGE_BYTES + 1)
            if len(page) > MAX_PAGE_BYTES:
                raise BadInput(
                    f"{path}: lists more than {MAX_PAGE_BYTES >> 20} MiB of names. Name one run."
                )
            return list_page(path, page)
        timeout = self._timeout(READ_TIMEOUT_SECONDS)
        if self._s3_reader is None:
            entries = self._files.ls(path, detail=True, refresh=True, **timeout)
            return cast("list[dict[str, Any]]", entries)
        bucket, key, _ = self._files.split_path(path)
        prefix = f"{key}/" if key else ""
        request = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/", "MaxKeys": LISTED_AT_ONCE}
        return list(_iter_listing(self._files, request, timeout))

    @property
    def _is_web(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

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
        if end is not None and self._is_web:
            return self._read_web_prefix(path, end)
        if self._s3_reader is None:
            content = self._files.cat_file(path, start=0, end=end, **self._timeout(timeout))
            return cast("bytes", content)
        return self._s3_reader.read(path, ByteRange(end=end), timeout).content

    def _read_web_prefix(self, path: str, most: int) -> bytes:
        """The start of an answer: many web servers know no ranges, and send everything."""
        content = bytearray()
        with self._files.open(path, "rb", block_size=0) as file:
            while chunk := file.read(most - len(content)):
                content += chunk
        return bytes(content)

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
                if not is_object_absent(error):
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
            refusals = {*PRECONDITION_FAILED, CONFLICT}
            if "IfMatch" in condition:
                refusals |= ABSENT
            if error_code(error) not in refusals:
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
