"""Amounts of time and money in the objects of a run, as far as they can be true."""

from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, StorageRefused
from imagekiln.steps.storage.store import Store

MAX_AMOUNT = 1e18  # what exceeds it is damaged
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]
T = TypeVar("T")


def read_or_none(store: Store, key: str, adapter: TypeAdapter[T]) -> T | None:
    """Figures of a run; None where there are none, or they are damaged or of another version.

    Only figures are lost with them. Raises StorageRefused, TryAgain.
    """
    try:
        return adapter.validate_json(store.read(key))
    except StorageRefused:
        raise
    except (BadInput, ValidationError):
        return None
