"""Committing: what the plan names is written once, and the first writer wins."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from imagekiln.steps.errors import BadInput


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object or a folder. `size` is in bytes, `modified` in seconds since 1970, None where nobody says."""

    key: str
    is_folder: bool
    size: int
    modified: float | None


def is_plain_name(name: str) -> bool:
    """Whether a name is one that stays in its folder: others may lie in a bucket, but we never make them."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


class Store(Protocol):
    """One folder of objects. Every method raises a KilnError with a sentence when storage fails."""

    @property
    def uri(self) -> str:
        """The folder, as the user may name it again."""

    def uri_of(self, key: str) -> str:
        """The full name of an object, for messages."""

    def read(self, key: str) -> bytes:
        """The whole object. Raises Missing."""

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        """The object for reading in pieces. Raises Missing."""

    def read_prefix(self, key: str, most: int) -> bytes:
        """The object's first bytes, at most so many. Raises Missing."""

    def exists(self, key: str) -> bool:
        """Whether the object, which is never empty, is there now."""

    def create(self, key: str, data: bytes) -> bool:
        """Write the object whole, or not at all where the name is taken: then False."""

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, over what was there."""

    def remove(self, key: str) -> None:
        """Delete the object."""

    def list_folder(self, folder: str) -> Iterator[ObjectInfo]:
        """What lies in a folder, "" being the store's own; nothing where there is none. No name leads elsewhere."""

    def remove_folder(self, folder: str) -> None:
        """Delete an empty folder, where there are such things."""


def create_once(store: Store, key: str, data: bytes) -> None:
    """Create an object whose bytes follow from the plan, or find that it is there already.

    A lost answer makes us meet our own write, so a taken name is an error only where the bytes differ:
    BadInput.
    """
    if not store.create(key, data) and store.read(key) != data:
        raise BadInput(
            f"{store.uri_of(key)}: is there with other content. Choose another run_id or output."
        )


def require_conditional_writes(store: Store, key: str, data: bytes) -> None:
    """Write `key` again, as it is: a store that takes it would let two writers collide. Raises BadInput."""
    if store.create(key, data):
        store.remove(key)
        raise BadInput(
            f"{store.uri}: this store ignores conditional writes, so two pods could overwrite each other. "
            "Use one that honours If-None-Match, or set unconditional_writes: accept."
        )
