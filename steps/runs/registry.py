"""The successful runs under one output: a log of small objects, numbered from 0, each created once and never changed.

The next number is found by asking for one after the other, so nothing is listed, and of two runs that end at once the
second takes the number after.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.runs.keys import SUCCESS_KEY, registry_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

READERS = 16
RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run that succeeded: its folder under the output, and the name of its job."""

    run_id: RunId
    name: str


RUN_ENTRY_TYPE_ADAPTER: TypeAdapter[RunEntry] = TypeAdapter(RunEntry)


def register_run(uri: str, entry: RunEntry) -> None:
    """Register the run at `uri` under the folder that holds it. A copy by another name is no run of that folder's."""
    output, folder = os.path.split(uri if "://" in uri else os.path.normpath(Path(uri).absolute()))
    if folder == entry.run_id:
        append_run_entry(output, entry)


def append_run_entry(output: str, entry: RunEntry) -> None:
    """Add a run to the log of `output`, unless it is there. Raises BadInput on damage, TryAgain where storage fails."""
    log = open_store(output)
    there = [*_iter_entries(log)]
    number = len(there)
    # A taken number is another run's, or our own after a lost answer: what lies there tells.
    while entry not in there and not log.create(
        registry_key(number), RUN_ENTRY_TYPE_ADAPTER.dump_json(entry) + b"\n"
    ):
        there.append(_read_entry(log, number))
        number += 1


def read_registry(output: str) -> list[RunEntry]:
    """The runs in the log of `output`, oldest first, but for those whose `_SUCCESS` is gone.

    Raises BadInput on damage, TryAgain where storage fails.
    """
    log = open_store(output)
    entries = [*dict.fromkeys(_iter_entries(log))]
    with ThreadPoolExecutor(READERS) as pool:
        done = pool.map(lambda entry: log.exists(f"{entry.run_id}/{SUCCESS_KEY}"), entries)
        return [entry for entry, success in zip(entries, done, strict=True) if success]


def _iter_entries(log: Store) -> Iterator[RunEntry]:
    """Every entry up to the first number that is free; some are read ahead."""
    with ThreadPoolExecutor(READERS) as pool:
        for start in count(step=READERS):
            for entry in pool.map(
                lambda number: _read_entry_or_none(log, number), range(start, start + READERS)
            ):
                if entry is None:
                    return
                yield entry


def _read_entry_or_none(log: Store, number: int) -> RunEntry | None:
    try:
        return _read_entry(log, number)
    except Missing:
        return None


def _read_entry(log: Store, number: int) -> RunEntry:
    key = registry_key(number)
    try:
        return RUN_ENTRY_TYPE_ADAPTER.validate_json(log.read(key))
    except ValidationError as error:
        raise BadInput(f"{log.uri_of(key)}: names no run. Restore it.") from error
