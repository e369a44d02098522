"""The successful runs under one output: a log of small objects, numbered from 0, each created once and never changed.

The next number is found by asking for one after the other, so nothing is listed, and of two runs that end at once the
second takes the number after.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps import names
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.storage import Store, open_store

READERS = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """A run that succeeded: its folder under the output, and the name of its job."""

    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    name: str


ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


def register(output: str, entry: Entry) -> None:
    """Add a run to the log of `output`, unless it is there. Raises BadInput on damage, TryAgain where storage fails."""
    log = open_store(output)
    there = [*_entries(log)]
    number = len(there)
    # A taken number is another run's, or our own after a lost answer: what lies there tells.
    while entry not in there and not log.create(names.registered_run(number), ENTRY.dump_json(entry) + b"\n"):
        there.append(_read(log, number))
        number += 1


def registered(output: str) -> list[Entry]:
    """The runs in the log of `output`, oldest first, but for those whose `_SUCCESS` is gone.

    Raises BadInput on damage, TryAgain where storage fails.
    """
    log = open_store(output)
    entries = [*dict.fromkeys(_entries(log))]
    with ThreadPoolExecutor(READERS) as pool:
        done = pool.map(lambda entry: log.exists(f"{entry.run_id}/{names.SUCCESS}"), entries)
        return [entry for entry, success in zip(entries, done, strict=True) if success]


def _entries(log: Store) -> Iterator[Entry]:
    """Every entry up to the first number that is free; some are read ahead."""
    with ThreadPoolExecutor(READERS) as pool:
        for start in count(step=READERS):
            for entry in pool.map(lambda number: _there(log, number), range(start, start + READERS)):
                if entry is None:
                    return
                yield entry


def _there(log: Store, number: int) -> Entry | None:
    try:
        return _read(log, number)
    except Missing:
        return None


def _read(log: Store, number: int) -> Entry:
    key = names.registered_run(number)
    try:
        return ENTRY.validate_json(log.read(key))
    except ValidationError as error:
        raise BadInput(f"{log.at(key)}: names no run. Restore it.") from error
