"""Translate errors of disks and object stores into sentences for the user."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
NO_SPACE = "the disk is full, or can hold no more files. Free some space and run the command again."
EXHAUSTION = {errno.ENOSPC, errno.EDQUOT}
# EEXIST: a file has the name of a folder that is to be created.
UNUSABLE_PATH = {errno.EROFS, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
# Error codes of object stores for requests that can never succeed.
REJECTED_REQUEST_CODES = {
    "AuthorizationHeaderMalformed",
    "InvalidBucketName",
    "PermanentRedirect",
    "301",
}
# Those for credentials that have expired, and what botocore raises without a request.
EXPIRED_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidToken",
    "InvalidTokenId",  # MinIO's name of it
    "RequestExpired",
    "TokenRefreshRequired",
    "SSOTokenLoadError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
}
# botocore raises these before it sends a request. By name, since a local run needs no botocore.
CLIENT_SETTING_ERRORS = {
    "NoCredentialsError": (
        "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    "PartialCredentialsError": "the credentials are incomplete; set both key and secret",
    "ProfileNotFound": "the AWS profile does not exist; correct AWS_PROFILE",
    "ParamValidationError": "the bucket or key is not a valid name; correct the URI",
    "InvalidRegionError": "the AWS region is not valid; correct AWS_DEFAULT_REGION",
}
# How it names errors of settings that it cannot use.
INVALID_SETTING = re.compile("Invalid|Unsupported|ConfigParse|EndpointProvider|UnknownCredential")
# Where botocore reads settings and credentials, before any request to the store.
SETTING_MODULES = {"botocore.configprovider", "botocore.credentials", "aiobotocore.credentials"}
INVALID_ENDPOINT = "Invalid endpoint"  # of a ValueError that botocore raises
# aiobotocore's wrapper of any error that is none of a connection.
CLIENT_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "httpx", "httpx2", "httpcore")
# What these libraries raise if no connection was made: by name, for the same reason.
CONNECTION_ERRORS = {
    "ClientConnectionError",  # of aiohttp
    "HTTPClientError",  # of botocore
    "TransportError",  # of httpx
}
ABSENT = {404, 410}
RETRIED_STATUSES = {408, 425, 429}  # too slow, too early, too many
# An object that Python shows by its address in memory, or urllib3's connection.
OBJECT_REPR = re.compile(r" ?<[^<>]* at 0x[0-9a-fA-F]+>(?:: )?|\b\w+\(host=[^()]*\): ")


@contextmanager
def translate_errors(where: str, operation: Operation | None = None) -> Iterator[None]:
    """Turn storage errors inside the block into a KilnError that names `where`.

    Metrics count those of an operation on a store, absent objects apart. Where the credentials did
    not do, the next file system that is opened reads them anew.
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
        if isinstance(explanation, StorageRefused) or _is_expiry(error):
            from fsspec.registry import registry  # only here: most commands need no object store

            for file_system in registry.values():
                file_system.clear_instance_cache()
        raise explanation from error


def explain_storage_error(where: str, error: Exception) -> KilnError | None:
    """The error as a sentence for the user; None if it is not a failure of storage."""
    if _is_of_client_setting(error):
        return _explain_client_setting(where, error)
    if _is_expiry(error):
        return TryAgain(
            f"{where}: the credentials have expired. Renew them and run the command again."
        )
    if isinstance(error, OSError):
        return _explain_os_error(where, error)
    if isinstance(error, MemoryError):
        return TryAgain(f"{where}: memory ran out. Run the command where there is more.")
    return _explain_library_error(where, error) if _is_client_library_error(error) else None


def _is_of_client_setting(error: Exception) -> bool:
    """Return whether no request could be made, for what the environment says of the store."""
    if _is_setting_error(error):
        return True
    if isinstance(error, ValueError) and str(error).startswith(INVALID_ENDPOINT):
        return True
    if isinstance(error, ValueError | FileNotFoundError | PermissionError):
        frames = walk_tb(error.__traceback__)
        return any(frame.f_globals.get("__name__") in SETTING_MODULES for frame, _ in frames)
    if type(error).__name__ != "HTTPClientError":
        return False
    # A file of certificates, a header with a key, the URL of a proxy; not what a server answers.
    cause = error.__cause__ or error.__context__
    is_local = isinstance(cause, FileNotFoundError | PermissionError | ValueError)
    return is_local or (cause is not None and _is_setting_error(cause))


def _is_setting_error(error: BaseException) -> bool:
    if not _is_client_library_error(error):
        return False
    names = [kind.__name__ for kind in type(error).__mro__]
    return any(name in CLIENT_SETTING_ERRORS or INVALID_SETTING.match(name) for name in names)


def _explain_client_setting(where: str, error: Exception) -> StorageRefused:
    if sentence := CLIENT_SETTING_ERRORS.get(type(error).__name__):
        return StorageRefused(f"{where}: {sentence}.")
    reason = error_reason(error)
    if reason.startswith(INVALID_ENDPOINT):
        return StorageRefused(
            f"{where}: the endpoint is not a URL ({reason}). Correct AWS_ENDPOINT_URL."
        )
    return StorageRefused(
        f"{where}: the S3 client cannot use its settings ({reason}). Correct the AWS_ variables, "
        "those of the proxy, or the client's configuration file."
    )


def _explain_library_error(where: str, error: Exception) -> KilnError:
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500 and status not in RETRIED_STATUSES:
        return StorageRefused(
            f"{where}: the server refused the request ({error_reason(error)}). "
            "Check the address and the credentials."
        )
    return TryAgain(
        f"{where}: storage did not answer ({error_reason(error)}). Run the command again."
    )


def _is_client_library_error(error: BaseException | None) -> bool:
    """Return whether one of the libraries that send requests raised it."""
    return type(error).__module__.partition(".")[0] in CLIENT_LIBRARIES


def _is_expiry(error: Exception) -> bool:
    """Say if the credentials have expired, as the store says or as the client knows itself."""
    return not EXPIRED_CREDENTIALS.isdisjoint((type(error).__name__, error_code(error)))


def is_storage_error(error: Exception) -> bool:
    """Return whether reading failed because of storage, not because of the content.

    Arrow raises a plain OSError without a number for content that it cannot read.
    """
    if not isinstance(error, OSError):
        return False
    return type(error) is not OSError or error.errno is not None


def error_code(error: BaseException) -> str:
    """The object store's error code, such as NoSuchBucket; empty if it sent none."""
    response = getattr(error.__cause__ or error, "response", None)
    if not isinstance(response, dict) or "Error" not in response:
        return ""
    return str(response["Error"].get("Code", ""))


def error_reason(error: BaseException) -> str:
    """The first line of the error's own message, or its type where it has none.

    Objects that the message shows as Python does, such as connections, are left out.
    """
    message = OBJECT_REPR.sub("", str(error))
    if isinstance(error, OSError) and error.strerror:
        message = error.strerror
    return first_line(message) or type(error).__name__


def _explain_os_error(where: str, error: OSError) -> KilnError:
    if isinstance(error, PermissionError):
        return _explain_refusal(where, error)
    if isinstance(error, FileNotFoundError):
        return _explain_absence(where, error)
    if isinstance(error, TimeoutError):
        return TryAgain(f"{where}: storage did not answer in time. Run the command again.")

    reason = error_reason(error)
    if error.errno in EXHAUSTION:
        return TryAgain(f"{where}: {NO_SPACE}")
    if error.errno == errno.ENOTDIR:
        return BadInput(f"{where}: is a file, or lies within one. Name a folder.")
    if error.errno in UNUSABLE_PATH:
        return BadInput(f"{where}: cannot be used ({reason}). Choose another path.")
    if error_code(error) in REJECTED_REQUEST_CODES:
        return StorageRefused(
            f"{where}: the store rejected the request ({reason}). "
            "Check the URI, the region and the credentials."
        )
    return TryAgain(f"{where}: storage failed ({reason}). Run the command again.")


def _explain_refusal(where: str, error: PermissionError) -> KilnError:
    if error_code(error) == "RequestTimeTooSkewed":
        return TryAgain(
            f"{where}: the clock of this machine differs from that of the store. "
            "Set it and run the command again."
        )
    if "://" not in where:  # on a disk, which knows no credentials
        path = Path(error.filename or where)
        # Path.exists would raise the same error again.
        place = next(filter(os.path.exists, (path, *path.parents)), path)
        return StorageRefused(
            f"{where}: access was refused ({error_reason(error)}): this user lacks a right to "
            f"{place}. Change its permissions, or choose another path."
        )
    remedy = "Check credentials and permissions."
    if error_code(error) == "AccessDenied":
        remedy += " Without s3:ListBucket, AWS also refuses to say that something is absent."
    return StorageRefused(f"{where}: access was refused ({error_reason(error)}). {remedy}")


def is_object_absent(error: FileNotFoundError) -> bool:
    """Return whether an object store has no such object: the bucket is there, and it was asked."""
    return error_code(error) != "NoSuchBucket" and not _is_of_client_setting(error)


def _explain_absence(where: str, error: FileNotFoundError) -> KilnError:
    if error_code(error) == "NoSuchBucket":
        return StorageRefused(f"{where}: no such bucket. Create it, or correct the name.")
    if error_code(error) == "NoSuchUpload":
        return TryAgain(f"{where}: the store lost a multipart upload. Run the command again.")
    if failure := _find_failed_request(error):
        return _explain_library_error(where, failure)
    return Missing(f"{where}: no such file. Check the name.")


def _find_failed_request(error: BaseException) -> Exception | None:
    """The failed request behind an error. fsspec calls a file absent whatever a web server says."""
    cause = error.__cause__ or error.__context__
    while cause is not None:
        names = {kind.__name__ for kind in type(cause).__mro__}
        is_connection_error = isinstance(cause, ConnectionError | TimeoutError)
        status = getattr(cause, "status", None)
        is_other_answer = isinstance(status, int) and status not in ABSENT
        is_failure = is_connection_error or is_other_answer or names & CONNECTION_ERRORS
        if isinstance(cause, Exception) and is_failure:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None
