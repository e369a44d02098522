"""Committing: what the plan names is written once, and the first writer wins."""

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import Store


def create_once(store: Store, key: str, data: bytes) -> None:
    """Create an object whose bytes follow from the plan, or find that it is there already.

    A lost answer makes us meet our own write, so a taken name is an error only where the bytes differ:
    BadInput.
    """
    if not store.create(key, data) and store.read(key) != data:
        raise BadInput(f"{store.uri_of(key)}: is there with other content. Choose another run_id or output.")


def require_conditional_writes(store: Store, key: str, data: bytes) -> None:
    """Write `key` again, as it is: a store that takes it would let two writers collide. Raises BadInput."""
    if store.create(key, data):
        store.remove(key)
        raise BadInput(
            f"{store.uri}: this store ignores conditional writes, so two pods could overwrite each other. "
            "Use one that honours If-None-Match, or set unconditional_writes: accept."
        )
