"""Objects under a URI, created once, on local disks and in any store that fsspec supports.

Also scratch data. Only this package imports fsspec and duckdb. Imports `errors` and `runtime`.
"""

from imagekiln.steps.storage.filesystem import ObjectStore, open_filesystem
from imagekiln.steps.storage.local import LocalStore, is_remote_uri, local_path
from imagekiln.steps.storage.store import Store


def open_store(uri: str, endpoint: str | None = None) -> Store:
    """Open the folder at a local path, or at any URI that fsspec supports, without any request.

    `endpoint` is the URL of an S3 store other than the environment's.
    """
    if not is_remote_uri(uri):
        return LocalStore(local_path(uri))
    files, path = open_filesystem(uri, endpoint)
    return ObjectStore(uri.rstrip("/"), path.rstrip("/"), files)
