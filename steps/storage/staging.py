"""Replacements that wait on this machine until all of them are known, and then follow at once."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from imagekiln.steps.errors import Missing, TryAgain
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import ObjectInfo, Store


class RelayedStore:
    """Passes everything on to another store: for what does one thing differently."""

    def __init__(self, store: Store) -> None:
        """Take the other store."""
        self.uri = store.uri
        self._store = store

    def uri_of(self, key: str) -> str:
        """The full name of an object, for messages."""
        return self._store.uri_of(key)

    def read(self, key: str) -> bytes:
        """The whole object. Raises Missing."""
        return self._store.read(key)

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        """The object for reading in pieces. Raises Missing."""
        return self._store.open(key)

    def read_prefix(self, key: str, most: int) -> bytes:
        """The object's first `most` bytes, or fewer where it has fewer. Raises Missing."""
        return self._store.read_prefix(key, most)

    def exists(self, key: str) -> bool:
        """Whether the object exists now."""
        return self._store.exists(key)

    def create(self, key: str, data: bytes) -> bool:
        """Write the object on condition that it does not exist; False where it does."""
        return self._store.create(key, data)

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, in place of an earlier one."""
        self._store.replace(key, data)

    def replace_after(self, check: Callable[[], None], key: str, data: bytes) -> None:
        """Write the object whole, in place of the one that was there when `check` was called."""
        self._store.replace_after(check, key, data)

    def remove(self, key: str) -> None:
        """Delete the object."""
        self._store.remove(key)

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """The objects and folders in a folder."""
        return self._store.list_folder(folder)

    def remove_folder(self, folder: str) -> None:
        """Delete an empty folder, if the store has folders."""
        self._store.remove_folder(folder)


class StagedStore(RelayedStore):
    """A store that reads as if objects were replaced, while their new bytes wait in a folder.

    Bytes equal to those that are stored do not wait: the object stays as it is. Objects that are
    created or removed are so at once, and listings show what the store has now.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        """Begin without replacements. The folder must exist, be empty, and have room for them."""
        super().__init__(store)
        self._folder = folder
        self._staged: dict[str, Path] = {}

    @property
    def staged_keys(self) -> tuple[str, ...]:
        """The keys of the objects that are to be replaced by other bytes, or that are new."""
        return tuple(self._staged)

    def publish(self, keys: Iterable[str]) -> None:
        """Replace these staged objects in the store, several at a time."""
        staged = list(keys)

        def write(index: int) -> None:
            key = staged[index]
            self._store.replace(key, self.read(key))

        for _ in map_ordered(write, len(staged)):
            pass

    def read(self, key: str) -> bytes:
        """The whole object, as it is to be. Raises Missing."""
        path = self._staged.get(key)
        if path is None:
            return super().read(key)
        with _translate_staged_errors(path):
            return path.read_bytes()

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        """The object, as it is to be, for reading in pieces. Raises Missing."""
        path = self._staged.get(key)
        if path is None:
            return super().open(key)
        with _translate_staged_errors(path):
            return path.open("rb")

    def read_prefix(self, key: str, most: int) -> bytes:
        """The object's first `most` bytes, or fewer where it has fewer. Raises Missing."""
        if key not in self._staged:
            return super().read_prefix(key, most)
        with self.open(key) as file:
            return file.read(most)

    def exists(self, key: str) -> bool:
        """Whether the object exists, or is to be written."""
        return key in self._staged or super().exists(key)

    def replace(self, key: str, data: bytes) -> None:
        """Have the object replaced later, where it has other bytes. Raises TryAgain."""
        if self._is_stored(key, data):
            self._staged.pop(key, None)
            return
        path = self._folder / key
        with translate_errors(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._staged[key] = path

    def _is_stored(self, key: str, data: bytes) -> bool:
        try:
            return self._store.read(key) == data
        except Missing:
            return False


@contextmanager
def _translate_staged_errors(path: Path) -> Iterator[None]:
    """Translate errors of reading what waits. Something may have cleared temporary files."""
    try:
        with translate_errors(str(path)):
            yield
    except Missing as error:
        raise TryAgain(
            f"{path}: was removed by something that clears temporary files. Run the command again."
        ) from error
