"""Garbage collection of the unfinished runs in an output.

Runs are listed, and removed only on request. A folder counts only if its plan bears its name. Only
objects with keys of a run are removed; other files stay, and so does their folder. Finished runs
are never touched.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from imagekiln.steps.errors import Missing
from imagekiln.steps.maintain.run_list import find_runs
from imagekiln.steps.runs.commits import create_commit
from imagekiln.steps.runs.keys import COMMITS_FOLDER, PLAN_KEY, RUN_KEY_PATTERN, SUCCESS_KEY
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import ObjectInfo, Store

log = logging.getLogger(__name__)
DAY_SECONDS = 86_400.0
DEFAULT_AGE_DAYS = 7.0


@dataclass(frozen=True, slots=True)
class Garbage:
    """An unfinished run to remove. `days` is the time since its last object was written."""

    run: str
    objects: int
    bytes: int
    days: float


@dataclass(frozen=True, slots=True)
class GcResult:
    """Garbage of an output, and whether it was removed."""

    output: str
    found: tuple[Garbage, ...]
    removed: bool

    @property
    def bytes(self) -> int:
        """Size of all garbage, in bytes."""
        return sum(garbage.bytes for garbage in self.found)


def gc(output: str, older_than: float = DEFAULT_AGE_DAYS, *, remove: bool = False) -> GcResult:
    """Find unfinished runs under `output` to which nothing was written for `older_than` days.

    With `remove`, they are removed. Plan and commits stay, so that no process resumes such a run. A
    later call finds any objects that an interrupted removal or a slow process left behind. A run
    that cannot be read stays, with a warning. Raises Missing if there is no output of a job,
    TryAgain.
    """
    store = open_store(output)
    runs, unreadable = find_runs(store)
    for error in unreadable:
        log.warning("%s It stays.", error)

    now = time.time()
    found: list[Garbage] = []
    for run in runs:
        objects = _find_objects(run)
        if not objects:
            continue
        # If a store reports no age, objects count as new.
        newest = max(entry.modified or now for entry in objects)
        days = (now - newest) / DAY_SECONDS
        is_old = run.head.is_removed or days >= older_than
        if is_old and (not remove or _remove_run(run, objects)):
            size = sum(entry.size for entry in objects)
            garbage = Garbage(run.store.uri, len(objects), size, days)
            found.append(garbage)
    return GcResult(store.uri, tuple(found), remove)


def _find_objects(run: Run) -> list[ObjectInfo]:
    """List all objects of an unfinished run, or the remaining ones of a removed run."""
    objects = _walk_objects(run.store)
    if run.head.is_removed:
        return [entry for entry in objects if not _records_removal(entry.key)]
    # A finished run stays: later runs may have skipped images that it has.
    if run.is_finished or run.store.exists(SUCCESS_KEY):
        return []
    return list(objects)


def _records_removal(key: str) -> bool:
    return key == PLAN_KEY or key.startswith(f"{COMMITS_FOLDER}/")


def _walk_objects(store: Store) -> Iterator[ObjectInfo]:
    """Yield every object of the run in a store, but no other files beside them."""
    folders = [""]
    while folders:
        for entry in store.list_folder(folders.pop()):
            if entry.is_folder:
                folders.append(entry.key)
            elif RUN_KEY_PATTERN.fullmatch(entry.key):
                yield entry


def _remove_run(run: Run, objects: Sequence[ObjectInfo]) -> bool:
    """Remove the objects of a run. Return False if another process has committed to it meanwhile.

    The commit comes first. From then on, no process plans, generates or aggregates the run.
    """
    store = run.store
    if not run.head.is_removed:
        removed = replace(run.head.commit, kind="removed")
        new_head = create_commit(store, run.head, removed)
        if new_head is None:
            return False
    keys = [entry.key for entry in objects if not _records_removal(entry.key)]

    def remove(index: int) -> None:
        with suppress(Missing):  # another process was faster
            store.remove(keys[index])

    for _ in map_ordered(remove, len(keys)):
        pass
    folders = {str(folder) for key in keys for folder in PurePosixPath(key).parents}
    for folder in sorted(folders - {"."}, reverse=True):
        store.remove_folder(folder)
    return True
