"""What failures of storage mean to the user."""

import errno

import aiohttp
import botocore.exceptions
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from imagekiln.steps.errors import (
    BadInput,
    KilnError,
    Missing,
    StorageRefused,
    TryAgain,
)
from imagekiln.steps.storage.failures import (
    error_code,
    explain_storage_error,
    translate_errors,
)

WHERE = "s3://bucket/run/plan.json"


def from_store(name: str, kind: type[OSError] = OSError) -> OSError:
    """What s3fs raises for an answer with this error code."""
    error = kind(errno.EIO, f"{name}, the store says")
    response = {"Error": {"Code": name, "Message": f"{name}, the store says"}}
    error.__cause__ = botocore.exceptions.ClientError(response, "PutObject")
    return error


def absent_because_of(cause: Exception) -> FileNotFoundError:
    """What fsspec raises for a host that is down: an absent file, with the reason as its cause."""
    error = FileNotFoundError("http://host/x.parquet")
    error.__cause__ = cause
    return error


def answer_of_the_web(status: int) -> aiohttp.ClientResponseError:
    """What fsspec passes on of an answer that is not a file."""
    url = URL("https://host/x.csv")
    request = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientResponseError(request, (), status=status, message="the server says")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer_of_the_web(403), StorageRefused),
        (answer_of_the_web(503), TryAgain),
        (absent_because_of(ConnectionRefusedError(errno.ECONNREFUSED, "refused")), TryAgain),
        (absent_because_of(aiohttp.ClientConnectionError("no route to host")), TryAgain),
        (absent_because_of(ValueError("status 404")), Missing),
        (absent_because_of(answer_of_the_web(503)), TryAgain),
        (OSError(errno.ENOSPC, "No space left on device"), TryAgain),
        (OSError(errno.EIO, "Input/output error"), TryAgain),
        (OSError(errno.EROFS, "Read-only file system"), BadInput),
        (OSError(errno.ENAMETOOLONG, "File name too long"), BadInput),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), BadInput),
        (IsADirectoryError(errno.EISDIR, "Is a directory"), BadInput),
        (PermissionError(errno.EACCES, "Permission denied"), StorageRefused),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), Missing),
        (TimeoutError(), TryAgain),
        (MemoryError(), TryAgain),
        (from_store("ExpiredToken", PermissionError), TryAgain),
        (from_store("RequestTimeTooSkewed", PermissionError), TryAgain),
        (from_store("AccessDenied", PermissionError), StorageRefused),
        (from_store("NoSuchBucket", FileNotFoundError), StorageRefused),
        (from_store("NoSuchKey", FileNotFoundError), Missing),
        (from_store("SlowDown"), TryAgain),
        (botocore.exceptions.NoCredentialsError(), StorageRefused),
        (botocore.exceptions.ProfileNotFound(profile="night"), StorageRefused),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"), TryAgain),
        (ValueError("Invalid endpoint: x"), StorageRefused),
    ],
    ids=lambda value: (
        value.__name__ if isinstance(value, type) else error_code(value) or repr(value)
    ),
)
def test_failure_of_storage_says_whether_to_try_again(
    error: Exception, kind: type[KilnError]
) -> None:
    explained = explain_storage_error(WHERE, error)
    assert type(explained) is kind
    assert str(explained).startswith(f"{WHERE}: ")
    assert str(explained).endswith(".")
    assert "\n" not in str(explained)


def test_other_errors_pass_unchanged() -> None:
    for error in (KeyError("image_id"), ValueError("a bug"), RuntimeError("a bug")):
        with pytest.raises(type(error)) as raised, translate_errors(WHERE):
            raise error
        assert raised.value is error
