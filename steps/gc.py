"""What unfinished and superseded runs left under an output: listed, and removed only when told.

The one place where objects are listed. Nothing is looked at but the folders of runs: those whose plan has their name.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from imagekiln.steps import leftovers, names, plan
from imagekiln.steps.errors import BadInput
from imagekiln.steps.listed import Listed
from imagekiln.steps.removing import remove_objects, remove_run
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.superseded import Run, superseded

DAY = 86_400.0  # seconds
OLDER_THAN = 7.0  # days
Reason = Literal["unfinished", "superseded", "leftovers"]


@dataclass(frozen=True, slots=True)
class Garbage:
    """What may go of one run: all of it, or objects in it that nothing names.

    `by` is the run that superseded it; `days` are how long nothing of it has been written.
    """

    run: str
    reason: Reason
    by: str | None
    objects: int
    bytes: int
    days: float


@dataclass(frozen=True, slots=True)
class Collected:
    """What was found under an output, and whether it was removed."""

    output: str
    found: tuple[Garbage, ...]
    removed: bool

    @property
    def bytes(self) -> int:
        """What all of it takes."""
        return sum(each.bytes for each in self.found)


def gc(output: str, older_than: float = OLDER_THAN, *, remove: bool = False) -> Collected:
    """Find what may go under `output`: where nothing was written for `older_than` days. Removes it with `remove`.

    A run that is removed loses its `_SUCCESS` first and its plan last, so that half of one never passes for a whole,
    and is found again. Raises TryAgain where storage fails.
    """
    store, now = open_store(output), time.time()
    runs = list(_runs(store))
    # What it has was left out of other runs, so that it is the only copy, whatever became of it since.
    needed = {run_id for run in runs for run_id in run.plan.looked_at}
    later = superseded([run for run in runs if run.finished is not None])
    found: list[Garbage] = []
    for run in runs:
        if run.finished is None and run.run_id in needed:
            continue
        garbage = _garbage(run, later.get(run.run_id), now, now - older_than * DAY)
        if garbage is not None:
            found.append(garbage)
            if remove:
                _remove(store, run, garbage, now - older_than * DAY)
    return Collected(store.uri, tuple(found), remove)


def _runs(store: Store) -> Iterator[Run]:
    """The runs under an output. Folders that are not ours, or of another version, are passed over."""
    for each in store.list(""):
        inside = open_store(f"{store.uri}/{each.key}")
        if not each.is_folder or not inside.exists(names.PLAN):
            continue
        try:
            frozen = plan.load(inside)
        except BadInput:
            continue
        if (frozen.run_id, frozen.round) == (each.key, 0):
            yield Run(each.key, inside, frozen, _finished(inside))


def _finished(inside: Store) -> float | None:
    return next((each.modified or 0.0 for each in inside.list("") if each.key == names.SUCCESS), None)


def _garbage(run: Run, by: str | None, now: float, before: float) -> Garbage | None:
    """What may go of one run, where it is old enough. A store that does not say how old things are has nothing old."""
    whole = run.finished is None or by is not None
    objects = leftovers.walk(run.store) if whole else _old(_loose(run), before)
    count = size = 0
    newest = 0.0
    for each in objects:
        count, size = count + 1, size + each.size
        newest = max(newest, now if each.modified is None else each.modified)
    if not count or newest > before:
        return None
    reason: Reason = "unfinished" if run.finished is None else "superseded" if by else "leftovers"
    return Garbage(run.store.uri, reason, by, count, size, (now - newest) / DAY)


def _loose(run: Run) -> Iterator[Listed]:
    return chain(leftovers.temporary(run.store), leftovers.unnamed(run.store, run.plan))


def _old(objects: Iterable[Listed], before: float) -> Iterator[Listed]:
    return (each for each in objects if each.modified is not None and each.modified <= before)


def _remove(store: Store, run: Run, garbage: Garbage, before: float) -> None:
    """Remove it, unless the run has been finished, or the one that superseded it undone, in the meantime."""
    if garbage.reason == "leftovers":
        remove_objects(run.store, _old(_loose(run), before))
        return
    done = f"{garbage.by or run.run_id}/{names.SUCCESS}"
    if store.exists(done) == (garbage.reason == "superseded"):
        remove_run(run.store)
