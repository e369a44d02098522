"""The fsspec file system of a URI: which are read, how S3 is asked, and what is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from fsspec.core import url_to_fs

from imagekiln.steps.errors import BadInput, NotInstalled, first_line
from imagekiln.steps.runtime.metrics import STORAGE_RETRIES
from imagekiln.steps.runtime.sanitize import holds_credentials, redact_uri
from imagekiln.steps.storage.failures import error_code, translate_errors

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
# The limit of one read, retries included.
READ_TIMEOUT_SECONDS = 180.0
WEB_SILENCE_SECONDS = 30.0  # until a web server that sends nothing is given up
# File systems of fsspec that wrap others, lead to this machine or its network, or need more than a
# URI.
REFUSED_SCHEMES = {
    *("adl", "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "dask", "data"),
    *("dbfs", "dir", "filecache", "ftp", "generic", "git", "jlab", "jupyter", "libarchive"),
    *("local", "pyscript", "reference", "simplecache", "tar", "webhdfs", "zip"),
}
# The extras of this package that install a scheme's file system.
EXTRAS = {"gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}


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
        # Of an unknown scheme, or a part that the URI lacks.
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
        from aiohttp import ClientTimeout

        # By default, an answer may take five minutes in all, which ends any large table.
        silence = ClientTimeout(
            total=None, sock_connect=WEB_SILENCE_SECONDS, sock_read=WEB_SILENCE_SECONDS
        )
        options["client_kwargs"] = {"timeout": silence}
    return options


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
    if scheme in ("http", "https") and not _has_host(uri):
        raise BadInput(f"{uri}: is no URL. Write https://host/file.")


def _has_host(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return bool(parts.hostname and parts.hostname.encode("idna") and parts.port != 0)
    except ValueError:
        return False


def _watch_requests(files: Any) -> None:
    """Have s3fs count repeated requests."""
    if files.session is not None:  # s3fs keeps a file system for all that ask for the same one
        return
    from aiobotocore.session import AioSession

    def count(attempts: int, **_: object) -> None:
        if attempts > 1:
            STORAGE_RETRIES.add()

    session = AioSession(**files.kwargs)
    session.register("needs-retry.s3", count)
    files.session = session  # last: other threads use it as soon as it is there


@contextmanager
def open_object(uri: str, block_bytes: int) -> Iterator[BinaryIO]:
    """A file at a URI for reading in pieces, of about so many bytes. Raises what fsspec raises."""
    files, path = open_filesystem(uri)
    with open_in_pieces(files, path, block_size=block_bytes) as file:
        yield file


@contextmanager
def open_in_pieces(files: Any, path: str, **options: object) -> Iterator[BinaryIO]:
    """A file of an fsspec file system for reading in pieces."""
    try:
        opened = files.open(path, "rb", **options)
    except OSError as error:
        if error_code(error).isdigit():  # S3 does not say why it refuses a HEAD, only a GET
            files.cat_file(path, start=0, end=1)
        raise
    with opened as file:
        yield file


def modification_time(entry: dict[str, Any]) -> float | None:
    """The time of writing, in seconds since 1970, which each file system has under its own key."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = entry.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
