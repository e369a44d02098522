"""Interface of object stores, and conditional creation: the first writer wins."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from imagekiln.steps.errors import BadInput, StorageRefused, cut_name


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object or a folder, with size in bytes and modification time in seconds since 1970.

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
        """The folder, as a user writes it in a command."""

    def uri_of(self, key: str) -> str:
        """Return the full name of an object, for messages."""

    def read(self, key: str) -> bytes:
        """Read the whole object. Raises Missing."""

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Open the object for reading in blocks. Raises Missing."""

    def read_prefix(self, key: str, most: int) -> bytes:
        """Read at most the first `most` bytes of the object. Raises Missing."""

    def exists(self, key: str) -> bool:
        """Return whether the object exists. Objects are never empty."""

    def create(self, key: str, data: bytes) -> bool:
        """Create the whole object atomically. Return False if it exists already."""

    def replace(self, key: str, data: bytes) -> None:
        """Write the whole object, replacing an earlier one."""

    def remove(self, key: str) -> None:
        """Delete the object."""

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield the objects and folders in a folder; nothing if it is absent.

        The folder "" is the store itself. Names are plain: none leads out of the folder.
        """

    def remove_folder(self, folder: str) -> None:
        """Delete an empty folder, if the store has folders."""


def is_plain_name(name: str) -> bool:
    """Return whether a name stays in its folder, since buckets may contain any name."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def require_plain_key(folder: str, key: str) -> None:
    """Raise BadInput if a key, which may be read from an untrusted object, leads elsewhere.

    The key "" names the folder itself.
    """
    if key and not all(map(is_plain_name, key.split("/"))):
        raise BadInput(f"{folder}: {cut_name(key)} is not the name of an object in it. Correct it.")


def create_once(store: Store, key: str, data: bytes) -> None:
    """Create an object whose bytes follow from the plan, or accept an equal existing one.

    After a lost response, a retry finds its own write. Raises BadInput if the bytes differ.
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
