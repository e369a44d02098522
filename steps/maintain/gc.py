"""What unfinished runs and killed writers left under an output: listed, and removed only when told.

The one place where objects are listed. Nothing is looked at but the folders of runs: those whose plan has their name.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.maintain.garbage import temporary_objects, unreferenced_objects, walk_objects
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import ObjectInfo, Store

REMOVE_THREADS = 8
REMOVE_BATCH = 1000


def remove_run(store: Store) -> None:
    """Remove a run: what makes it look whole first, should it have been finished meanwhile, and its plan last."""
    if store.exists(SUCCESS_KEY):
        store.remove(SUCCESS_KEY)
    remove_objects(store, (each for each in walk_objects(store) if each.key != PLAN_KEY))
    if store.exists(PLAN_KEY):
        store.remove(PLAN_KEY)
    for folder in _nested_folders(store, ""):
        store.remove_folder(folder)
    store.remove_folder("")


def remove_objects(store: Store, objects: Iterable[ObjectInfo]) -> None:
    """Remove objects, several at a time. One that is gone already is no matter."""
    waiting = iter(objects)
    with ThreadPoolExecutor(REMOVE_THREADS) as pool:
        while some := list(islice(waiting, REMOVE_BATCH)):
            list(pool.map(lambda each: _remove_object(store, each.key), some))


def _remove_object(store: Store, key: str) -> None:
    with suppress(Missing):
        store.remove(key)


def _nested_folders(store: Store, above: str) -> Iterator[str]:
    """The folders within one, the innermost first."""
    for each in list(store.list_folder(above)):
        if each.is_folder:
            yield from _nested_folders(store, each.key)
            yield each.key


DAY_SECONDS = 86_400.0  # seconds
DEFAULT_AGE_DAYS = 7.0  # days
GarbageReason = Literal["unfinished", "leftovers"]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run, and whether it was finished."""

    run_id: str
    store: Store
    plan: Plan
    finished: bool


@dataclass(frozen=True, slots=True)
class Garbage:
    """What may go of one run: all of it, or objects in it that nothing names.

    `days` are how long nothing of it has been written.
    """

    run: str
    reason: GarbageReason
    objects: int
    bytes: int
    days: float


@dataclass(frozen=True, slots=True)
class GcResult:
    """What was found under an output, and whether it was removed."""

    output: str
    found: tuple[Garbage, ...]
    removed: bool

    @property
    def bytes(self) -> int:
        """What all of it takes."""
        return sum(each.bytes for each in self.found)


def gc(output: str, older_than: float = DEFAULT_AGE_DAYS, *, remove: bool = False) -> GcResult:
    """Find what may go under `output`: where nothing was written for `older_than` days. Removes it with `remove`.

    A run that is removed loses its plan last, so that half of one is found again. Raises TryAgain where storage fails.
    """
    store, now = open_store(output), time.time()
    runs = list(_iter_run_folders(store))
    # What it has was left out of other runs, so that it is the only copy, whatever became of it since.
    needed = {run_id for run in runs for run_id in run.plan.existing_runs}
    found: list[Garbage] = []
    for run in runs:
        if not run.finished and run.run_id in needed:
            continue
        garbage = _assess_run(run, now, now - older_than * DAY_SECONDS)
        if garbage is not None:
            found.append(garbage)
            if remove:
                _remove_garbage(run, garbage, now - older_than * DAY_SECONDS)
    return GcResult(store.uri, tuple(found), remove)


def _iter_run_folders(store: Store) -> Iterator[RunFolder]:
    """The runs under an output. Folders that are not ours, or of another version, are passed over."""
    for each in store.list_folder(""):
        inside = open_store(f"{store.uri}/{each.key}")
        if not each.is_folder or not inside.exists(PLAN_KEY):
            continue
        try:
            frozen = load_plan(inside)
        except BadInput:
            continue
        if (frozen.run_id, frozen.round) == (each.key, 0):
            yield RunFolder(each.key, inside, frozen, inside.exists(SUCCESS_KEY))


def _assess_run(run: RunFolder, now: float, before: float) -> Garbage | None:
    """What may go of one run, where it is old enough. A store that does not say how old things are has nothing old."""
    objects = (
        _older_objects(_leftover_objects(run), before) if run.finished else walk_objects(run.store)
    )
    count = size = 0
    newest = 0.0
    for each in objects:
        count, size = count + 1, size + each.size
        newest = max(newest, now if each.modified is None else each.modified)
    if not count or newest > before:
        return None
    reason: GarbageReason = "leftovers" if run.finished else "unfinished"
    return Garbage(run.store.uri, reason, count, size, (now - newest) / DAY_SECONDS)


def _leftover_objects(run: RunFolder) -> Iterator[ObjectInfo]:
    return chain(temporary_objects(run.store), unreferenced_objects(run.store, run.plan))


def _older_objects(objects: Iterable[ObjectInfo], before: float) -> Iterator[ObjectInfo]:
    return (each for each in objects if each.modified is not None and each.modified <= before)


def _remove_garbage(run: RunFolder, garbage: Garbage, before: float) -> None:
    """Remove it, unless the run has been finished in the meantime."""
    if garbage.reason == "leftovers":
        remove_objects(run.store, _older_objects(_leftover_objects(run), before))
    elif not run.store.exists(SUCCESS_KEY):
        remove_run(run.store)
