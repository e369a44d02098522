"""Turns: of several processes that change what a run or an export has, the last to begin does so.

What an earlier one has read may be out of date: it was frozen, or Argo believes its pod dead. Each
takes a turn by creating the next entry, and looks for a later one before it writes. One that is
frozen between this look and the write is refused by S3, if the object was written meanwhile. Other
stores, and removals, have no such condition.
"""

import time
import uuid
from copy import copy
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from imagekiln.steps.errors import Missing, TryAgain
from imagekiln.steps.runs.account import count_entries
from imagekiln.steps.runs.keys import turn_key
from imagekiln.steps.storage.staging import RelayedStore
from imagekiln.steps.storage.store import Store


@dataclass(frozen=True, slots=True)
class Turn:
    """Who took a turn, and when, in seconds since 1970."""

    writer: str
    at: float


TURN_TYPE_ADAPTER: TypeAdapter[Turn] = TypeAdapter(Turn)


class TurnStore(RelayedStore):
    """A folder into which this process writes until another takes a turn: TryAgain from then on."""

    def __init__(self, store: Store) -> None:
        """Take the next turn in `store`."""
        super().__init__(store)
        self._turns = store
        self._writer = uuid.uuid4().hex
        self._number = _take_turn(store, self._writer)

    def create(self, key: str, data: bytes) -> bool:
        """Write the object on condition that it does not exist; False where it does."""
        self.require_turn()
        return super().create(key, data)

    def replace(self, key: str, data: bytes) -> None:
        """Write the object whole, in place of an earlier one."""
        self.replace_after(self.require_turn, key, data)

    def remove(self, key: str) -> None:
        """Delete the object."""
        self.require_turn()
        super().remove(key)

    def hold(self, store: Store) -> "TurnStore":
        """Another folder of the same run, such as that of a round, written into on this turn."""
        held = copy(self)
        held.uri = store.uri
        held._store = store
        return held

    def require_turn(self) -> None:
        """Raise TryAgain where another process has taken a turn since, or has removed the run.

        A run that is planned again after its removal counts its turns from 0 again.
        """
        is_own = _is_of(self._turns, self._number, self._writer)
        if not is_own or self._turns.exists(turn_key(self._number + 1)):
            raise TryAgain(
                f"{self._turns.uri}: another process has begun to aggregate, retry or remove it, "
                "or to take images from it. Run the command again once it has ended."
            )


def _take_turn(store: Store, writer: str) -> int:
    """Create the next entry, and return its number. Raises TryAgain where storage fails."""
    turn = Turn(writer, time.time())
    content = TURN_TYPE_ADAPTER.dump_json(turn) + b"\n"
    number = count_entries(store, turn_key)
    # A removal that was killed may have left later entries. Where an answer was lost, a second
    # request meets the entry of the first.
    while not (
        store.create(turn_key(number), content) or _is_of(store, number, writer)
    ) or store.exists(turn_key(number + 1)):
        number += 1
    return number


def _is_of(store: Store, number: int, writer: str) -> bool:
    try:
        content = store.read(turn_key(number))
        turn = TURN_TYPE_ADAPTER.validate_json(content)
    except (Missing, ValidationError):
        return False
    return turn.writer == writer
