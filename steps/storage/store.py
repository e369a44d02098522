"""The interface of object stores, and the commit of objects: the first writer wins."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from imagekiln.steps.errors import BadInput, StorageRefused, cut_name


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object or a folder: its size in bytes, and when it was modified, in seconds since 1970.

    `modified` is None if the store does not report it.
    """

    key: str
    is_folder: bool
    size: int
    modified: float | None


class Store(Protocol):
    """One folder of objects. If storage fails, every method raises a KilnError."""

    @property
    def uri(self) -> str:
        """The folder, as the user may write it in a command."""

    def uri_of(self, key: str) -> str:
        """The full name of an object, for messages."""

    def read(self, key: str) -> bytes:
        """The whole object. Raises Missing."""

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        """The object for reading in pieces. Raises Missing."""

    def read_prefix(self, key: str, most: int) -> bytes:
        """The object's first `most` bytes, or fewer if it has fewer. Raises Missing."""

    def exists(self, key: str) -> bool:
        """Return whether the object, which is never empty, exists now."""

    def create(self, key: str, data: bytes) -> bool:
        """Write the object whole on condition that it does not exist; False if it does."""

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, in place of an earlier one."""

    def remove(self, key: str) -> None:
        """Delete the object."""

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """The objects and folders in a folder, "" being the store's own; none if it is absent.

        Every name is plain: none leads out of the folder.
        """

    def remove_folder(self, folder: str) -> None:
        """Delete an empty folder, if the store has folders."""


def is_plain_name(name: str) -> bool:
    """Say if a name stays in its folder. We write no others, but a bucket may contain them."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def require_plain_key(folder: str, key: str) -> None:
    """Raise BadInput if a key, which may come from an object of a stranger's, leads elsewhere.

    The key "" names the folder itself.
    """
    if key and not all(map(is_plain_name, key.split("/"))):
        raise BadInput(f"{folder}: {cut_name(key)} is not the name of an object in it. Correct it.")


def create_once(store: Store, key: str, data: bytes) -> None:
    """Create an object whose bytes follow from the plan, or find it created already.

    When an answer is lost, a retry meets its own write, so equal bytes are fine. Raises BadInput.
    """
    if not store.create(key, data) and store.read(key) != data:
        raise BadInput(
            f"{store.uri_of(key)}: exists with other content. Choose another run_id or output, or "
            f"delete what an interrupted command left in {store.uri}."
        )


def require_conditional_writes(store: Store, key: str, data: bytes) -> None:
    """Create an existing object again, which must fail. Raises BadInput if it succeeds."""
    if store.create(key, data):
        with suppress(StorageRefused):  # the error below matters more
            store.remove(key)
        raise BadInput(
            f"{store.uri}: this store ignores conditional writes, so two pods could overwrite "
            "each other. Use one that honors If-None-Match, or set unconditional_writes: accept."
        )
