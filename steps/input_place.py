"""Where the input may say that a picture lies, and reading it from there.

A planning pod reads what the author of a table names. So a table from elsewhere names no file of the pod's own, no
table names an address of the network but an object store's, and nothing is read but so many bytes.
"""

from contextlib import suppress
from pathlib import Path

from imagekiln.steps.errors import BadInput, NotInstalled
from imagekiln.steps.input_picture import RejectedImage
from imagekiln.steps.remote import is_remote_uri
from imagekiln.steps.storage import open_store

ALLOWED_SCHEMES = {"s3", "s3a", "gs", "gcs"}
MAX_KEY_BYTES = 1024  # bytes of a key, as S3 has it


def read_input_image(name: str, table: str, most: int) -> bytes:
    """The first bytes, at most so many, of the picture that the table at a path or URI names.

    Relative paths are relative to the working directory, as those of prompts are. Raises Unfit, or TryAgain where
    storage fails, or NotInstalled where nothing here reads from such a store.
    """
    folder, key = _resolve_location(name, is_remote_uri(table))
    try:
        return open_store(folder).read_prefix(key, most)
    except NotInstalled:  # true of every row's, and no fault of this one
        raise
    except BadInput as error:  # it is missing, or may not be read
        raise RejectedImage("missing") from error


def _resolve_location(name: str, elsewhere: bool) -> tuple[str, str]:
    """The folder that the name leads to, and the name in it. Raises Unfit."""
    if len(name.encode()) > MAX_KEY_BYTES:
        raise RejectedImage("place")
    if is_remote_uri(name):
        return _resolve_object(name)
    if elsewhere:
        raise RejectedImage("place")
    path = Path(name.removeprefix("file://"))
    with suppress(OSError):  # a name that is too long
        if path.is_file():  # a pipe, or a device, would be read for ever
            return str(path.absolute().parent), path.name
    raise RejectedImage("missing")


def _resolve_object(name: str) -> tuple[str, str]:
    scheme, _, rest = name.partition("://")
    # Two colons would chain file systems, and lead from an allowed one to any.
    if scheme not in ALLOWED_SCHEMES or "::" in name:
        raise RejectedImage("place")
    folder, _, key = rest.rpartition("/")
    if not folder or not key:
        raise RejectedImage("missing")
    return f"{scheme}://{folder}", key
