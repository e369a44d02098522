"""Objects under a URI, created once: local disk, and whatever fsspec reaches; scratch files and databases.

Alone imports fsspec and duckdb. Imports `errors` and `runtime`.
"""

from pathlib import Path

from imagekiln.steps.storage.local import LocalStore
from imagekiln.steps.storage.object_store import ObjectStore, open_filesystem
from imagekiln.steps.storage.store import Store


def open_store(uri: str) -> Store:
    """The folder at a local path or any URI that fsspec knows. Nothing is asked of it yet."""
    if "://" not in uri or uri.startswith("file://"):
        return LocalStore(Path(uri.removeprefix("file://")).expanduser())
    files, path = open_filesystem(uri)
    return ObjectStore(uri.rstrip("/"), path.rstrip("/"), files)
