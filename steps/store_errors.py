"""What a failure of a disk or an object store means to the user."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain, first_line

FULL = {errno.ENOSPC, errno.EDQUOT}
# EEXIST: a file stands where a folder should be made.
WRONG_PLACE = {errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
# Answers of a store that was asked for something it will never give.
WRONG_REQUEST = {"AuthorizationHeaderMalformed", "InvalidBucketName", "InvalidToken", "PermanentRedirect", "301"}
STALE_LOGIN = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
# botocore raises these before it asks the store; no import, so that a local run needs no botocore.
WRONG_SETTINGS = {
    "NoCredentialsError": "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "PartialCredentialsError": "the credentials are incomplete; set both key and secret",
    "ProfileNotFound": "the AWS profile does not exist; correct AWS_PROFILE",
    "ParamValidationError": "the name is not a valid bucket or key; correct the URI",
    "InvalidRegionError": "the AWS region is not valid; correct AWS_DEFAULT_REGION",
}


@contextmanager
def told(where: str) -> Iterator[None]:
    """Turn what storage raises inside into a KilnError that names `where`."""
    try:
        yield
    except KilnError:
        raise
    except Exception as error:
        told_as = explain(where, error)
        if told_as is None:
            raise
        raise told_as from error


def explain(where: str, error: Exception) -> KilnError | None:
    """What to tell the user of `error`; None where it is no failure of storage."""
    if isinstance(error, PermissionError):
        return _refused(where, error)
    if isinstance(error, FileNotFoundError):
        return _missing(where, error)
    if isinstance(error, TimeoutError):
        return TryAgain(f"{where}: storage did not answer in time. Run the command again.")
    if isinstance(error, OSError):
        return _system(where, error)
    if type(error).__name__ in WRONG_SETTINGS:
        return BadInput(f"{where}: {WRONG_SETTINGS[type(error).__name__]}.")
    if isinstance(error, ValueError) and str(error).startswith("Invalid endpoint"):
        return BadInput(f"{where}: the endpoint is not a URL ({reason(error)}). Correct AWS_ENDPOINT_URL.")
    if type(error).__module__.partition(".")[0] in ("botocore", "aiobotocore", "aiohttp"):
        return TryAgain(f"{where}: storage did not answer ({reason(error)}). Run the command again.")
    return None


def is_storage(error: Exception) -> bool:
    """Whether reading failed because storage did. Arrow's complaint of what it read is a plain OSError, unnumbered."""
    return isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)


def _refused(where: str, error: PermissionError) -> KilnError:
    if code(error) in STALE_LOGIN:
        return TryAgain(f"{where}: the credentials have expired. Renew them and run the command again.")
    return BadInput(f"{where}: access was refused ({reason(error)}). Check credentials and permissions.")


def _missing(where: str, error: FileNotFoundError) -> KilnError:
    if code(error) == "NoSuchBucket":
        return BadInput(f"{where}: no such bucket. Make it, or correct the name.")
    if code(error) == "NoSuchUpload":
        return TryAgain(f"{where}: the store lost an upload in pieces. Run the command again.")
    return Missing(f"{where}: no such file. Check the name.")


def _system(where: str, error: OSError) -> KilnError:
    if error.errno in FULL:
        return TryAgain(f"{where}: the disk is full. Free some space and run the command again.")
    if error.errno in WRONG_PLACE:
        return BadInput(f"{where}: {reason(error)}. Name another place.")
    if code(error) in WRONG_REQUEST:
        return BadInput(f"{where}: the store refused the request ({reason(error)}). Check URI, region and credentials.")
    return TryAgain(f"{where}: storage failed ({reason(error)}). Run the command again.")


def code(error: BaseException) -> str:
    """The object store's own name for the failure, such as NoSuchBucket; empty where it gave none."""
    response = getattr(error.__cause__ or error, "response", None)
    return str(response["Error"].get("Code", "")) if isinstance(response, dict) and "Error" in response else ""


def reason(error: Exception) -> str:
    """The first line of the failure's own words."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return first_line(words) or type(error).__name__
