"""The registry of successful runs under one output: small objects, numbered from 0, never changed.

Each entry is created once, under the first number that is free. Numbers are tried one after the
other, so that nothing is listed; of two runs that end at once, the second takes the next number.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import compress, count
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.keys import SUCCESS_KEY, registry_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store, read_small

READERS = 16
RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run that succeeded: its folder under the output, and the name of its job."""

    run_id: RunId
    name: str


RUN_ENTRY_TYPE_ADAPTER: TypeAdapter[RunEntry] = TypeAdapter(RunEntry)


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
    entries = list(_iter_entries(store))
    content = RUN_ENTRY_TYPE_ADAPTER.dump_json(entry) + b"\n"
    while entry not in entries:
        number = len(entries)
        if store.create(registry_key(number), content):
            return
        # Another run has the number, or this one after an answer was lost: its entry tells.
        entries.append(_read_entry(store, number))


def read_registry(output: str) -> list[RunEntry]:
    """The runs in the registry of `output`, oldest first, without those whose `_SUCCESS` is gone.

    Raises BadInput on damage, TryAgain where storage fails.
    """
    store = open_store(output)
    entries = list(dict.fromkeys(_iter_entries(store)))
    success_keys = [f"{entry.run_id}/{SUCCESS_KEY}" for entry in entries]
    with ThreadPoolExecutor(READERS) as pool:
        is_success = pool.map(store.exists, success_keys)
        return list(compress(entries, is_success))


def _iter_entries(store: Store) -> Iterator[RunEntry]:
    """Every entry before the first free number; several numbers are read at once."""
    with ThreadPoolExecutor(READERS) as pool:
        for start in count(step=READERS):
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
        return RUN_ENTRY_TYPE_ADAPTER.validate_json(read_small(store, key))
    except ValidationError as error:
        raise BadInput(f"{store.uri_of(key)}: is not the entry of a run. Restore it.") from error
