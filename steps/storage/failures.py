"""What a failure of a disk or an object store means to the user."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, first_line

DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
# EEXIST: a file stands where a folder should be made.
UNUSABLE_PATH_ERRNOS = {
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
# Answers of a store that was asked for something it will never give.
REJECTED_REQUEST_CODES = {
    "AuthorizationHeaderMalformed",
    "InvalidBucketName",
    "InvalidToken",
    "PermanentRedirect",
    "301",
}
EXPIRED_CREDENTIALS_CODES = {
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "TokenRefreshRequired",
}
# botocore raises these before it asks the store; no import, so that a local run needs no botocore.
CLIENT_SETTING_ERRORS = {
    "NoCredentialsError": "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "PartialCredentialsError": "the credentials are incomplete; set both key and secret",
    "ProfileNotFound": "the AWS profile does not exist; correct AWS_PROFILE",
    "ParamValidationError": "the name is not a valid bucket or key; correct the URI",
    "InvalidRegionError": "the AWS region is not valid; correct AWS_DEFAULT_REGION",
}


@contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """Turn what storage raises inside into a KilnError that names `where`."""
    try:
        yield
    except KilnError:
        raise
    except Exception as error:
        told_as = explain_storage_error(where, error)
        if told_as is None:
            raise
        raise told_as from error


def explain_storage_error(where: str, error: Exception) -> KilnError | None:
    """What to tell the user of `error`; None where it is no failure of storage."""
    if isinstance(error, PermissionError):
        return _explain_permission_error(where, error)
    if isinstance(error, FileNotFoundError):
        return _explain_not_found(where, error)
    if isinstance(error, TimeoutError):
        return TryAgain(f"{where}: storage did not answer in time. Run the command again.")
    if isinstance(error, OSError):
        return _explain_os_error(where, error)
    if type(error).__name__ in CLIENT_SETTING_ERRORS:
        return BadInput(f"{where}: {CLIENT_SETTING_ERRORS[type(error).__name__]}.")
    if isinstance(error, ValueError) and str(error).startswith("Invalid endpoint"):
        return BadInput(
            f"{where}: the endpoint is not a URL ({error_reason(error)}). Correct AWS_ENDPOINT_URL."
        )
    if type(error).__module__.partition(".")[0] in ("botocore", "aiobotocore", "aiohttp"):
        return TryAgain(
            f"{where}: storage did not answer ({error_reason(error)}). Run the command again."
        )
    return None


def is_storage_error(error: Exception) -> bool:
    """Whether reading failed because storage did. Arrow's complaint of what it read is a plain OSError, unnumbered."""
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)


def _explain_permission_error(where: str, error: PermissionError) -> KilnError:
    if error_code(error) in EXPIRED_CREDENTIALS_CODES:
        return TryAgain(
            f"{where}: the credentials have expired. Renew them and run the command again."
        )
    return BadInput(
        f"{where}: access was refused ({error_reason(error)}). Check credentials and permissions."
    )


def _explain_not_found(where: str, error: FileNotFoundError) -> KilnError:
    if error_code(error) == "NoSuchBucket":
        return BadInput(f"{where}: no such bucket. Make it, or correct the name.")
    if error_code(error) == "NoSuchUpload":
        return TryAgain(f"{where}: the store lost an upload in pieces. Run the command again.")
    return Missing(f"{where}: no such file. Check the name.")


def _explain_os_error(where: str, error: OSError) -> KilnError:
    if error.errno in DISK_FULL_ERRNOS:
        return TryAgain(f"{where}: the disk is full. Free some space and run the command again.")
    if error.errno in UNUSABLE_PATH_ERRNOS:
        return BadInput(f"{where}: {error_reason(error)}. Name another place.")
    if error_code(error) in REJECTED_REQUEST_CODES:
        return BadInput(
            f"{where}: the store refused the request ({error_reason(error)}). Check URI, region and credentials."
        )
    return TryAgain(f"{where}: storage failed ({error_reason(error)}). Run the command again.")


def error_code(error: BaseException) -> str:
    """The object store's own name for the failure, such as NoSuchBucket; empty where it gave none."""
    response = getattr(error.__cause__ or error, "response", None)
    return (
        str(response["Error"].get("Code", ""))
        if isinstance(response, dict) and "Error" in response
        else ""
    )


def error_reason(error: Exception) -> str:
    """The first line of the failure's own words."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return first_line(words) or type(error).__name__
