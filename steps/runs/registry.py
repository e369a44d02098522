"""The registry of successful runs under one output: small objects, numbered from 0, never changed.

Each entry is created once, under the first number that is free. Numbers are tried one after the
other, so that nothing is listed; of two runs that end at once, the second takes the next number.
Since entries never change, a hundred of them are also written as one block, which is read in their
place: a thousand nights are read in some twenty requests.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, count
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.fields import RUN_ID_PATTERN
from imagekiln.steps.runs.keys import (
    SUCCESS_KEY,
    SUSPENDED_KEY,
    registry_block_key,
    registry_key,
)
from imagekiln.steps.runtime.concurrency import map_ordered, thread_pool
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

READERS = 16
BLOCK_ENTRIES = 100
RunId = Annotated[str, Field(pattern=RUN_ID_PATTERN)]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run that succeeded: its folder under the output, and the name of its job."""

    run_id: RunId
    name: str


RUN_ENTRY_TYPE_ADAPTER: TypeAdapter[RunEntry] = TypeAdapter(RunEntry)
Block = Annotated[tuple[RunEntry, ...], Field(min_length=BLOCK_ENTRIES, max_length=BLOCK_ENTRIES)]
BLOCK_TYPE_ADAPTER: TypeAdapter[Block] = TypeAdapter(Block)


def register_run(uri: str, entry: RunEntry) -> str | None:
    """Register the run at `uri` under the folder that holds it, and return that folder.

    A copy of a run in a folder of another name is not registered: then, None.
    """
    path = uri if "://" in uri else os.path.normpath(Path(uri).absolute())
    output, folder = os.path.split(path)
    if folder != entry.run_id:
        return None
    append_run_entry(output, entry)
    return output


def append_run_entry(output: str, entry: RunEntry) -> None:
    """Append a run to the registry of `output`, unless it has an entry.

    Raises BadInput on damage, TryAgain where storage fails.
    """
    store = open_store(output)
    blocks = list(_iter_blocks(store))
    entries = [*chain.from_iterable(blocks), *_iter_entries(store, len(blocks) * BLOCK_ENTRIES)]
    content = RUN_ENTRY_TYPE_ADAPTER.dump_json(entry) + b"\n"
    while entry not in entries:
        number = len(entries)
        is_written = store.create(registry_key(number), content)
        # Another run has the number, or this one after an answer was lost: its entry tells.
        entries.append(entry if is_written else _read_entry(store, number))
    _write_blocks(store, entries, len(blocks))


def read_entries(output: str) -> list[RunEntry]:
    """All runs in the registry of `output`, oldest first, also those whose `_SUCCESS` is gone.

    Raises BadInput on damage, TryAgain where storage fails.
    """
    store = open_store(output)
    blocks = list(_iter_blocks(store))
    entries = _iter_entries(store, len(blocks) * BLOCK_ENTRIES)
    return list(dict.fromkeys(chain(*blocks, entries)))


def iter_successful(
    output: str, entries: Sequence[RunEntry], *, also_suspended: bool = False
) -> Iterator[RunEntry]:
    """The entries whose `_SUCCESS` is there, in their order; a few are looked for at once.

    With `also_suspended`, also those where it is not while their objects are replaced.
    """
    store = open_store(output)
    markers = [SUCCESS_KEY]
    if also_suspended:  # it may succeed between two looks
        markers += [SUSPENDED_KEY, SUCCESS_KEY]

    def is_successful(index: int) -> bool:
        folder = entries[index].run_id
        return any(store.exists(f"{folder}/{marker}") for marker in markers)

    return compress(entries, map_ordered(is_successful, len(entries), READERS))


def _iter_blocks(store: Store) -> Iterator[Block]:
    """Every block before the first that is missing."""
    for number in count():
        key = registry_block_key(number)
        try:
            yield BLOCK_TYPE_ADAPTER.validate_json(store.read(key))
        except Missing:
            return
        except ValidationError as error:
            raise BadInput(
                f"{store.uri_of(key)}: is damaged. Delete it and the blocks after it: "
                "their runs have entries of their own."
            ) from error


def _write_blocks(store: Store, entries: Sequence[RunEntry], known: int) -> None:
    """Write the blocks that are full, after those that are known. Anybody writes the same bytes."""
    for number in range(known, len(entries) // BLOCK_ENTRIES):
        start = number * BLOCK_ENTRIES
        block = tuple(entries[start : start + BLOCK_ENTRIES])
        store.create(registry_block_key(number), BLOCK_TYPE_ADAPTER.dump_json(block) + b"\n")


def _iter_entries(store: Store, first: int) -> Iterator[RunEntry]:
    """Every entry from the number `first` to the first free one; several are read at once."""
    with thread_pool(READERS) as pool:
        for start in count(first, READERS):
            numbers = range(start, start + READERS)
            for entry in pool.map(lambda number: _read_entry_or_none(store, number), numbers):
                if entry is None:
                    return
                yield entry


def _read_entry_or_none(store: Store, number: int) -> RunEntry | None:
    try:
        return _read_entry(store, number)
    except Missing:
        return None


def _read_entry(store: Store, number: int) -> RunEntry:
    key = registry_key(number)
    try:
        return RUN_ENTRY_TYPE_ADAPTER.validate_json(store.read(key))
    except ValidationError as error:
        raise BadInput(f"{store.uri_of(key)}: is not the entry of a run. Restore it.") from error
