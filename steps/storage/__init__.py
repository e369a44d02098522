"""Objects under a URI, created once: on local disks, and wherever fsspec reaches; scratch data.

Alone imports fsspec and duckdb. Imports `errors` and `runtime`.
"""

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage.filesystem import open_filesystem
from imagekiln.steps.storage.local import LocalStore, is_remote_uri, local_path
from imagekiln.steps.storage.object_store import ObjectStore
from imagekiln.steps.storage.store import Store, require_plain_key


def open_folder(store: Store, name: str) -> Store:
    """A folder of a store, as a store of its own. Raises BadInput if a link leads to it."""
    require_plain_key(store.uri, name)
    uri = f"{store.uri}/{name}"
    if not is_remote_uri(uri) and local_path(uri).is_symlink():
        raise BadInput(
            f"{uri}: is a link, which may lead out of the output. "
            "Replace it by the folder that it leads to."
        )
    return open_store(uri)


def open_store(uri: str, endpoint: str | None = None) -> Store:
    """The folder at a local path, or at any URI that fsspec knows, without any request to it.

    `endpoint` is that of an S3 store other than the environment's.
    """
    if not is_remote_uri(uri):
        return LocalStore(local_path(uri))
    files, path = open_filesystem(uri, endpoint)
    return ObjectStore(uri.rstrip("/"), path.rstrip("/"), files)
