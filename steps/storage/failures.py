"""Translation of disk and object store errors into messages for the user."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Literal

from imagekiln.steps.errors import (
    BadInput,
    KilnError,
    Missing,
    StorageRefused,
    TryAgain,
    first_line,
)
from imagekiln.steps.runtime.metrics import STORAGE_ERRORS

Operation = Literal["read", "write", "list", "remove"]
AGAIN = "Run the command again."
# Disk errors by number: the kind of error, and what to do.
DISK_ERRORS: dict[int, tuple[type[KilnError], str]] = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        (TryAgain, "the disk is full, or can hold no more files. Free some space and run again."),
    ),
    errno.ENOTDIR: (BadInput, "is a file, or lies within one. Name a folder."),
    # EEXIST: a file has the name of a folder that is to be created.
    **dict.fromkeys(
        (errno.EROFS, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
        (BadInput, "cannot be used ({reason}). Choose another path."),
    ),
}
EXPIRED = (TryAgain, "the credentials have expired. Renew them and run the command again.")
REJECTED = (
    StorageRefused,
    "the store rejected the request ({reason}). Check the URI, the region and the credentials.",
)
# Errors by object store code or class name, so that a local run imports no client.
KNOWN_ERRORS: dict[str, tuple[type[KilnError], str]] = {
    **dict.fromkeys(
        (
            *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "RequestExpired"),
            "InvalidTokenId",  # in MinIO
            *("TokenRefreshRequired", "SSOTokenLoadError", "TokenRetrievalError"),
            "UnauthorizedSSOTokenError",
        ),
        EXPIRED,
    ),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "InvalidBucketName", "PermanentRedirect", "301"), REJECTED
    ),
    "MemoryError": (TryAgain, "memory ran out. Run the command where there is more."),
    "PermissionError": (
        StorageRefused,
        "access was refused ({reason}). Check credentials and permissions.",
    ),
    "NoSuchBucket": (StorageRefused, "no such bucket. Create it, or correct the name."),
    "NoSuchUpload": (TryAgain, f"the store lost a multipart upload. {AGAIN}"),
    "RequestTimeTooSkewed": (
        TryAgain,
        "the clock of this machine differs from that of the store. Set it and run again.",
    ),
    "AccessDenied": (
        StorageRefused,
        "access was refused ({reason}). Check credentials and permissions. Without s3:ListBucket, "
        "AWS also refuses to say that something is absent.",
    ),
    "NoCredentialsError": (
        StorageRefused,
        "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    ),
}
# Errors of botocore for invalid settings.
CLIENT_SETTING_ERROR = re.compile(
    "Invalid|Unsupported|ConfigParse|EndpointProvider|UnknownCredential|PartialCredentials"
    "|ProfileNotFound|ParamValidation"
)
# Modules that read settings and credentials before any request to the store.
SETTING_MODULES = {"botocore.configprovider", "botocore.credentials", "aiobotocore.credentials"}
INVALID_ENDPOINT = "Invalid endpoint"  # in a ValueError of botocore
CLIENT_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "httpx", "httpx2", "httpcore")
ABSENT = {404, 410}
RETRIED_STATUSES = {408, 425, 429}  # too slow, too early, too many

OBJECT_REPR = re.compile(r" ?<[^<>]* at 0x[0-9a-fA-F]+>(?:: )?|\b\w+\(host=[^()]*\): ")


@contextmanager
def translate_errors(where: str, operation: Operation | None = None) -> Iterator[None]:
    """Turn storage errors inside the block into a KilnError that names `where`.

    Metrics count errors of an operation on a store, except absent objects. After a refusal, the
    next file system to be opened reads the credentials again.
    """
    try:
        yield
    except KilnError:
        raise
    except Exception as error:
        explanation = explain_storage_error(where, error)
        if explanation is None:
            raise
        if operation is not None and not isinstance(explanation, Missing):
            STORAGE_ERRORS.add(operation=operation)
        if isinstance(explanation, StorageRefused) or _known_error(error) == EXPIRED:
            from fsspec.registry import registry  # only here: most commands need no object store

            for file_system in registry.values():
                file_system.clear_instance_cache()
        raise explanation from error


def explain_storage_error(where: str, error: Exception) -> KilnError | None:
    """Build an error with a message for the user; None if it is not a failure of storage."""
    known = _known_error(error)
    if known is None and _is_client_setting(error):
        return StorageRefused(
            f"{where}: the S3 client cannot use its settings ({error_reason(error)}). Correct the "
            "AWS_ variables, those of the proxy, or the client's configuration file."
        )
    if known is None and isinstance(error, OSError):
        known = DISK_ERRORS.get(error.errno or 0)
    if known is not None:
        kind, sentence = known
        return kind(f"{where}: {sentence.format(reason=error_reason(error))}")
    if isinstance(error, FileNotFoundError):
        failure = _failed_request(error)
        if failure is None:
            return Missing(f"{where}: no such file. Check the name.")
        return _explain_request(where, failure)
    if isinstance(error, OSError) or _is_client_error(error):
        return _explain_request(where, error)
    return None


def _known_error(error: Exception) -> tuple[type[KilnError], str] | None:
    return KNOWN_ERRORS.get(error_code(error)) or KNOWN_ERRORS.get(type(error).__name__)


def _is_client_setting(error: Exception) -> bool:
    """Return whether the S3 client could send no request because of its settings."""
    if isinstance(error, ValueError | FileNotFoundError | PermissionError):
        frames = walk_tb(error.__traceback__)
        modules = {frame.f_globals.get("__name__") for frame, _ in frames}
        return not modules.isdisjoint(SETTING_MODULES) or INVALID_ENDPOINT in str(error)
    names = [kind.__name__ for kind in type(error).__mro__]
    return _is_client_error(error) and any(map(CLIENT_SETTING_ERROR.match, names))


def _is_client_error(error: BaseException | None) -> bool:
    """Return whether one of the libraries that send requests raised it."""
    return type(error).__module__.partition(".")[0] in CLIENT_LIBRARIES


def _explain_request(where: str, error: BaseException) -> KilnError:
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in RETRIED_STATUSES:
        return StorageRefused(
            f"{where}: the server refused the request ({error_reason(error)}). "
            "Check the address and the credentials."
        )
    is_silent = isinstance(error, ConnectionError | TimeoutError) or _is_client_error(error)
    failure = "storage did not answer" if is_silent else "storage failed"
    return TryAgain(f"{where}: {failure} ({error_reason(error)}). {AGAIN}")


def _failed_request(error: FileNotFoundError) -> BaseException | None:
    """Return the failed request behind an error. fsspec reports any web error as a missing file."""
    cause = error.__cause__
    is_of_request = isinstance(cause, ConnectionError | TimeoutError) or _is_client_error(cause)
    if not is_of_request or error_code(error) or getattr(cause, "status", None) in ABSENT:
        return None
    return cause


def is_storage_error(error: Exception) -> bool:
    """Return whether reading failed because of storage, not because of the content.

    For content that it cannot parse, Arrow raises a plain OSError without a number.
    """
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)


def is_object_absent(error: FileNotFoundError) -> bool:
    """Return whether the store has no such object. False if the bucket is missing."""
    return error_code(error) != "NoSuchBucket" and not _is_client_setting(error)


def error_code(error: BaseException) -> str:
    """Return the object store's error code, such as NoSuchBucket; empty if there is none."""
    response = getattr(error.__cause__ or error, "response", None)
    if not isinstance(response, dict) or "Error" not in response:
        return ""
    return str(response["Error"].get("Code", ""))


def error_reason(error: BaseException) -> str:
    """Return the first line of the error's message without object addresses, or else its type."""
    message = OBJECT_REPR.sub("", str(error))
    if isinstance(error, OSError) and error.strerror:
        message = error.strerror
    return first_line(message) or type(error).__name__
