"""What unfinished runs and killed writers left under an output: listed, and removed only when told.

The one place where objects are listed. Nothing is looked at but the folders of runs: those whose plan has their name.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from imagekiln.steps import leftovers, names, plan
from imagekiln.steps.errors import BadInput
from imagekiln.steps.listed import ObjectInfo
from imagekiln.steps.plan import Plan
from imagekiln.steps.removing import remove_objects, remove_run
from imagekiln.steps.storage import Store, open_store

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
        if not each.is_folder or not inside.exists(names.PLAN_KEY):
            continue
        try:
            frozen = plan.load_plan(inside)
        except BadInput:
            continue
        if (frozen.run_id, frozen.round) == (each.key, 0):
            yield RunFolder(each.key, inside, frozen, inside.exists(names.SUCCESS_KEY))


def _assess_run(run: RunFolder, now: float, before: float) -> Garbage | None:
    """What may go of one run, where it is old enough. A store that does not say how old things are has nothing old."""
    objects = _older_objects(_leftover_objects(run), before) if run.finished else leftovers.walk_objects(run.store)
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
    return chain(leftovers.temporary_objects(run.store), leftovers.unreferenced_objects(run.store, run.plan))


def _older_objects(objects: Iterable[ObjectInfo], before: float) -> Iterator[ObjectInfo]:
    return (each for each in objects if each.modified is not None and each.modified <= before)


def _remove_garbage(run: RunFolder, garbage: Garbage, before: float) -> None:
    """Remove it, unless the run has been finished in the meantime."""
    if garbage.reason == "leftovers":
        remove_objects(run.store, _older_objects(_leftover_objects(run), before))
    elif not run.store.exists(names.SUCCESS_KEY):
        remove_run(run.store)
