"""Where a static gallery's files are, and that nothing else is touched beside them.

Files with content are named by its hash, so that one that exists need not be written again, and a
page that is open while the gallery is made anew still finds what it reads.
"""

import gzip
import hashlib
import re
from collections.abc import Collection

from pydantic_core import to_json

from imagekiln.steps.errors import BadInput
from imagekiln.steps.gallery.page import GENERATOR_META
from imagekiln.steps.storage.store import Store

PAGE_KEY = "index.html"
DATA_KEY = "gallery.json"
ROWS_FOLDER = "rows"
COLUMNS_FOLDER = "columns"
THUMBNAILS_FOLDER = "thumbnails"
FOLDERS = (ROWS_FOLDER, COLUMNS_FOLDER, THUMBNAILS_FOLDER)
NAME_PATTERN = re.compile(r"[0-9a-f]{32}\.(json\.gz|bin)")
MAX_PAGE_BYTES = 4096  # of the page, within which it says whose it is


def content_name(content: bytes) -> str:
    """The beginning of a file's name: a hash of what decides its content."""
    return hashlib.sha256(content).hexdigest()[:32]


def put_json(store: Store, folder: str, value: object) -> str:
    """Write a value as compressed JSON, unless it is there, and return the name of its file."""
    content = to_json(value, inf_nan_mode="null")
    name = f"{content_name(content)}.json.gz"
    key = f"{folder}/{name}"
    if not store.exists(key):
        store.create(key, gzip.compress(content, mtime=0))
    return name


def put_data(store: Store, value: object) -> None:
    """Write what the page reads first, which names all other files."""
    store.replace(DATA_KEY, to_json(value, inf_nan_mode="null"))


def require_own_folder(store: Store) -> None:
    """Raise BadInput where the folder has files that no static gallery wrote."""
    names = {entry.key for entry in store.list_folder("")}
    if not names:
        return
    if names <= {PAGE_KEY, DATA_KEY, *FOLDERS} and _is_own_page(store):
        return
    raise BadInput(
        f"{store.uri}: has other files than a static gallery. Name a new folder, or an empty one."
    )


def remove_others(store: Store, keys: Collection[str]) -> int:
    """Remove what earlier galleries wrote here but for these keys, and return how many files."""
    stale = [
        entry.key
        for folder in FOLDERS
        for entry in store.list_folder(folder)
        if entry.key not in keys and NAME_PATTERN.fullmatch(entry.key.rpartition("/")[2])
    ]
    for key in stale:
        store.remove(key)
    return len(stale)


def _is_own_page(store: Store) -> bool:
    if not store.exists(PAGE_KEY):
        return False
    return GENERATOR_META.encode() in store.read_prefix(PAGE_KEY, MAX_PAGE_BYTES)
