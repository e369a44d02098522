"""Registry of the successful runs in an output: small immutable objects, numbered from 0.

Each entry is created once, under the first free number, without listing. If two runs end at the
same time, the second takes the next number.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path

from pydantic import TypeAdapter

from imagekiln.steps.job.fields import RunId
from imagekiln.steps.runs.commits import count_entries
from imagekiln.steps.runs.keys import SUCCESS_KEY, registry_key
from imagekiln.steps.runs.plan import parse_json
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

READERS = 16


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A successful run: its folder in the output, and the name of its job."""

    run_id: RunId
    name: str


RUN_ENTRY_TYPE_ADAPTER: TypeAdapter[RunEntry] = TypeAdapter(RunEntry)


def register_run(uri: str, entry: RunEntry) -> None:
    """Register the run at `uri` in the output that contains it.

    A copy of a run in a folder with another name is not registered.
    """
    path = uri if "://" in uri else os.path.normpath(Path(uri).absolute())
    output, folder = os.path.split(path)
    if folder == entry.run_id:
        append_run_entry(output, entry)


def append_run_entry(output: str, entry: RunEntry) -> None:
    """Append a run to the registry of `output`, unless it is registered.

    Raises BadInput on damage, TryAgain.
    """
    store = open_store(output)
    content = RUN_ENTRY_TYPE_ADAPTER.dump_json(entry) + b"\n"
    is_registered = False
    while not is_registered:  # another run may take the number
        entries = _read_all(store)
        is_registered = entry in entries or store.create(registry_key(len(entries)), content)


def read_entries(output: str) -> list[RunEntry]:
    """Read all runs in the registry of `output`, oldest first, even without their `_SUCCESS`.

    Raises BadInput on damage, TryAgain.
    """
    store = open_store(output)
    return list(dict.fromkeys(_read_all(store)))


def _read_all(store: Store) -> list[RunEntry]:
    count = count_entries(store, registry_key)
    return list(map_ordered(partial(_read_entry, store), count, READERS))


def iter_successful(output: str, entries: Sequence[RunEntry]) -> Iterator[RunEntry]:
    """Yield the entries whose `_SUCCESS` exists, in order, checking several at once."""
    store = open_store(output)

    def is_successful(index: int) -> bool:
        run_id = entries[index].run_id
        return store.exists(f"{run_id}/{SUCCESS_KEY}")

    return compress(entries, map_ordered(is_successful, len(entries), READERS))


def _read_entry(store: Store, number: int) -> RunEntry:
    key = registry_key(number)
    return parse_json(RUN_ENTRY_TYPE_ADAPTER, store.read(key), store.uri_of(key), "entry of a run")


def find_finished_runs(output: str) -> list[RunEntry]:
    """Find the successful runs that still exist under `output`, in the order of the registry.

    Raises BadInput on damage, TryAgain.
    """
    return list(iter_successful(output, read_entries(output)))
