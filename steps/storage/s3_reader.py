"""Reads from S3 that compare what came with what the store says of it, and ask again if in doubt.

A proxy, a gateway or a busy server may cut, swap or refuse an answer once. Such an answer counts
only if the next one is the same: nothing that is whole is called missing, refused or damaged.
"""

import errno
import hashlib
import io
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsspec.asyn import sync

from imagekiln.steps.runtime.machine import require_memory_for
from imagekiln.steps.runtime.metrics import STORAGE_RETRIES
from imagekiln.steps.storage.failures import (
    error_code,
    error_reason,
    is_client_library_error,
    is_expiry,
)

MAX_REQUESTS = 5  # for one answer; two of them are enough where the second is like the first
WAIT_SECONDS = 0.1  # before the third request, doubled before each further one
# Parquet readers take the end of a file first. With it, the answer says how large the file is.
TAIL_BYTES = 2**16
CONTENT_RANGE_PATTERN = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
MD5_ETAG_PATTERN = re.compile(r"[0-9a-f]{32}")
# What each answer of S3 to these requests has, and that of a gateway in its place lacks.
LOOKUP_FIELDS = {"ListObjectsV2": "Name", "HeadObject": "ETag"}
# The answer to a request for bytes of an empty object.
OK = 200
FORBIDDEN = 403
NEGATIVE_STATUSES = (FORBIDDEN, 404)
INVALID_RANGE = {"InvalidRange", "416"}


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of an object: to the end where `end` is None; the last ones where `start` < 0."""

    start: int = 0
    end: int | None = None

    def __str__(self) -> str:
        """The range as HTTP writes it."""
        if self.start < 0:
            return f"bytes={self.start}"
        last = "" if self.end is None else self.end - 1
        return f"bytes={self.start}-{last}"

    def within(self, size: int) -> tuple[int, int]:
        """The first byte and the one after the last, of an object of so many bytes."""
        start = max(0, size + self.start) if self.start < 0 else min(self.start, size)
        end = size if self.end is None else min(self.end, size)
        return start, end


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes that came, the size of the whole object, and its entity tag, if there is one."""

    content: bytes = b""
    size: int = 0
    etag: str = ""
    md5: str = ""  # of the whole object, where the entity tag may be that


class _BrokenBody(ConnectionError):
    """The connection broke before the whole answer came."""


class S3Reader:
    """Reads objects through s3fs, whose own methods drop what a store says of an answer."""

    def __init__(self, files: Any) -> None:
        """Take the file system, which has no types."""
        self._files = files
        # Whether entity tags are MD5 sums here: unknown until one was compared.
        self._has_md5_etags: bool | None = None

    def read(self, path: str, byte_range: ByteRange, timeout: float) -> Answer:
        """The bytes in this range, as many as there are.

        Raises what s3fs raises, and OSError where one answer is not like the other.
        """
        previous: Answer | OSError | None = None
        for number in range(MAX_REQUESTS):
            if number > 1:
                time.sleep(WAIT_SECONDS * 2 ** (number - 2))
            outcome, is_certain = self._request(path, byte_range, timeout)
            is_repeated = previous is not None and _is_same(outcome, previous)
            if is_certain or is_repeated:
                break
            previous = outcome
            if isinstance(outcome, Answer):
                STORAGE_RETRIES.add()
        else:
            raise OSError(errno.EIO, "each answer to the same request is another")

        if isinstance(outcome, OSError):
            raise outcome
        is_whole = len(outcome.content) == outcome.size
        if not is_certain and outcome.md5 and is_whole and self._has_md5_etags is None:
            self._has_md5_etags = False
        return outcome

    def _request(
        self, path: str, byte_range: ByteRange, timeout: float
    ) -> tuple[Answer | OSError, bool]:
        """What the store answers, and whether that needs no confirmation."""
        try:
            headers, content = self._fetch(path, byte_range, timeout)
        except OSError as error:
            if error_code(error) in INVALID_RANGE:
                return Answer(), False
            is_doubtful = isinstance(error, FileNotFoundError | PermissionError | _BrokenBody)
            if is_expiry(error) or not is_doubtful:
                raise
            return error, False
        return self._check(headers, content, byte_range)

    def _fetch(
        self, path: str, byte_range: ByteRange, timeout: float
    ) -> tuple[Mapping[str, Any], bytes]:
        bucket, key, _ = self._files.split_path(path)
        headers = self._files.call_s3(
            "get_object", Bucket=bucket, Key=key, Range=str(byte_range), timeout=timeout
        )
        require_memory_for(int(headers.get("ContentLength") or 0))
        try:
            content = sync(self._files.loop, _read_body, headers["Body"], timeout=timeout)
        except Exception as error:
            if not is_client_library_error(error):
                raise
            raise _BrokenBody(errno.ECONNRESET, error_reason(error)) from error
        return headers, content

    def _check(
        self, headers: Mapping[str, Any], content: bytes, byte_range: ByteRange
    ) -> tuple[Answer, bool]:
        etag = _etag(headers)
        md5 = etag if _is_md5(headers) else ""
        match = CONTENT_RANGE_PATTERN.fullmatch(str(headers.get("ContentRange") or ""))
        if match is None:  # the store does not know ranges, or this is not its answer
            start, end = byte_range.within(len(content))
            answer = Answer(content[start:end], len(content), etag, md5)
            return answer, self._has_md5(headers, content)

        first, last, size = map(int, match.groups())
        answer = Answer(content, size, etag, md5)
        is_planned = (first, last + 1) == byte_range.within(size)
        if not etag or not is_planned or len(content) != last + 1 - first:
            return answer, False
        is_whole = len(content) == size
        return answer, not is_whole or self._fits_etag(headers, content)

    def _fits_etag(self, headers: Mapping[str, Any], content: bytes) -> bool:
        """Whether a whole object has the MD5 sum that its entity tag is, where it is one.

        That of an object uploaded in pieces, or encrypted with keys of one's own, is none. Other
        stores have others: the second answer shows it.
        """
        return (
            self._has_md5_etags is False or self._has_md5(headers, content) or not _is_md5(headers)
        )

    def _has_md5(self, headers: Mapping[str, Any], content: bytes) -> bool:
        if not _is_md5(headers):
            return False
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if digest != _etag(headers):
            return False
        self._has_md5_etags = True
        return True


def confirm_lookup(
    *, response: tuple[Any, Mapping[str, Any]] | None, operation: Any, attempts: int, **_: object
) -> float | None:
    """Have botocore repeat a request that finds nothing, or that something else has answered.

    To be registered for the requests in LOOKUP_FIELDS. Raises OSError where no answer is a store's.
    """
    if response is None:
        return None
    http, parsed = response
    is_foreign = http.status_code == OK and not parsed.get(LOOKUP_FIELDS[operation.name])
    if is_foreign and attempts > 1:
        raise OSError(errno.EIO, "the answer is not that of an object store")
    if is_foreign or http.status_code in NEGATIVE_STATUSES:
        # Of two answers, the second may be the one that was refused by mistake.
        most_attempts = 3 if http.status_code == FORBIDDEN else 2
        return 0.0 if attempts < most_attempts else None
    return None


async def _read_body(body: Any) -> bytes:
    try:
        content: bytes = await body.read()
        return content
    finally:
        body.close()


def _is_md5(headers: Mapping[str, Any]) -> bool:
    """Whether the entity tag of this answer may be the MD5 sum of the object."""
    is_encrypted = headers.get("SSECustomerAlgorithm") or headers.get("SSEKMSKeyId")
    return not is_encrypted and MD5_ETAG_PATTERN.fullmatch(_etag(headers)) is not None


def _etag(headers: Mapping[str, Any]) -> str:
    return str(headers.get("ETag") or "").strip('"')


def _is_same(outcome: Answer | OSError, previous: Answer | OSError) -> bool:
    if isinstance(outcome, OSError) and isinstance(previous, OSError):
        is_same_code = error_code(outcome) == error_code(previous)
        return type(outcome) is type(previous) and is_same_code
    return outcome == previous


class S3File(io.RawIOBase):
    """An object that is read in pieces. Opening it reads its end."""

    def __init__(self, reader: S3Reader, path: str, timeout: float) -> None:
        """Read the end of the object. Raises what S3Reader.read raises."""
        super().__init__()
        self._reader = reader
        self._path = path
        self._timeout = timeout
        self._tail = reader.read(path, ByteRange(-TAIL_BYTES), timeout)
        self._position = 0

    @property
    def md5(self) -> str:
        """The MD5 sum of the object, or what looks like one; "" where the store tells none."""
        return self._tail.md5

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place from which the next bytes are read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place, counted from the start, from here, or from the end."""
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._tail.size}
        self._position = max(0, origins[whence] + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, or all that are left. Raises what S3Reader.read raises."""
        limit = self._tail.size if size is None or size < 0 else self._position + size
        start, end = ByteRange(self._position, limit).within(self._tail.size)
        content = self._read_range(start, end)
        self._position = start + len(content)
        return content

    def readall(self) -> bytes:
        """All bytes that are left."""
        return self.read()

    def _read_range(self, start: int, end: int) -> bytes:
        if start == end:
            return b""
        tail_start = self._tail.size - len(self._tail.content)
        if start >= tail_start:
            return self._tail.content[start - tail_start : end - tail_start]
        answer = self._reader.read(self._path, ByteRange(start, end), self._timeout)
        if (answer.etag, answer.size) != (self._tail.etag, self._tail.size):
            raise OSError(errno.EIO, "it changed while it was read")
        return answer.content
