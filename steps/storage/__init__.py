"""Objects under a URI, created once: on local disks, and wherever fsspec reaches; scratch data.

Alone imports fsspec and duckdb. Imports `errors` and `runtime`.
"""

from imagekiln.steps.storage.filesystem import ObjectStore, open_filesystem
from imagekiln.steps.storage.local import LocalStore, is_remote_uri, local_path
from imagekiln.steps.storage.store import Store


def open_store(uri: str, endpoint: str | None = None) -> Store:
    """The folder at a local path, or at any URI that fsspec knows, without any request to it.

    `endpoint` is that of an S3 store other than the environment's.
    """
    if not is_remote_uri(uri):
        return LocalStore(local_path(uri))
    files, path = open_filesystem(uri, endpoint)
    return ObjectStore(uri.rstrip("/"), path.rstrip("/"), files)
