"""Deleting the files that an export has no more, so that whoever reads all of a folder gets none.

Names are never used again. So to delete them is right at any time, and done again by each export: a
process that slept while it wrote such a file may have brought it back.
"""

from collections.abc import Set
from contextlib import suppress

from imagekiln.steps.errors import Missing
from imagekiln.steps.export.commits import ExportHead
from imagekiln.steps.export.layout import DATA_FOLDER, FILE_NAME, FOLDER_TABLE, MANIFEST_FOLDER
from imagekiln.steps.storage.store import Store


def remove_dropped(store: Store, head: ExportHead) -> None:
    """Delete what commits up to this one have announced, and it does not have. Raises TryAgain."""
    kept = {*head.commit.pieces}
    for file in head.commit.files:
        kept.add(file.key.removesuffix(FOLDER_TABLE))
    for folder in (DATA_FOLDER, MANIFEST_FOLDER):
        _remove_from(store, folder, kept, head.number)


def _remove_from(store: Store, folder: str, kept: Set[str], newest: int) -> None:
    for entry in list(store.list_folder(folder)):
        name = FILE_NAME.fullmatch(entry.key.rpartition("/")[2])
        if entry.key in kept or (name and int(name["commit"]) > newest):
            continue
        if name:
            objects = store.list_folder(entry.key) if entry.is_folder else [entry]
            for each in list(objects):
                with suppress(Missing):  # another process was faster
                    store.remove(each.key)
        elif entry.is_folder:
            _remove_from(store, entry.key, kept, newest)
        if entry.is_folder:
            store.remove_folder(entry.key)
