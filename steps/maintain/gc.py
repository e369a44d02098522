"""Garbage collection: runs under an output that were never finished, and unused rewritten prompts.

Listed, and removed only on request. Of a run, only in a folder whose plan bears the folder's name,
and only objects with the key of one that a run writes: what somebody else put beside them stays,
with its folder. Nothing is removed within a finished run.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from imagekiln.steps.errors import Missing
from imagekiln.steps.maintain.run_list import READERS, find_runs, require_output
from imagekiln.steps.runs.commits import create_commit
from imagekiln.steps.runs.keys import (
    COMMITS_FOLDER,
    PLAN_KEY,
    REWRITE_KEY_PATTERNS,
    REWRITES_FOLDER,
    RUN_KEY_PATTERN,
    SUCCESS_KEY,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import Run
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import ObjectInfo, Store

log = logging.getLogger(__name__)
DAY_SECONDS = 86_400.0
DEFAULT_AGE_DAYS = 7.0
REMOVE_THREADS = 8
GarbageReason = Literal["unfinished", "unused"]


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something to remove: an unfinished run, or rewritten prompts that no plan names.

    `days` is the time since the last of it was written.
    """

    run: str
    reason: GarbageReason
    objects: int
    bytes: int
    days: float


@dataclass(frozen=True, slots=True)
class GcResult:
    """The garbage under an output, and whether it was removed.

    `recent_runs` are the runs that stay since something was written to them lately.
    """

    output: str
    found: tuple[Garbage, ...]
    removed: bool
    recent_runs: int = 0

    @property
    def bytes(self) -> int:
        """The size of all garbage."""
        return sum(garbage.bytes for garbage in self.found)


def gc(output: str, older_than: float = DEFAULT_AGE_DAYS, *, remove: bool = False) -> GcResult:
    """Find garbage under `output` to which nothing was written for `older_than` days.

    With `remove`, it is removed. Of a run, plan and commits stay, so that no process resumes it,
    and what was left by an interruption, or written later by a process that slept, is found again.
    A run that cannot be read stays, with a warning. Raises Missing if there is no such folder,
    BadInput if it is not the output of any job, TryAgain.
    """
    store = open_store(output)
    folders = find_runs(store)
    runs = [*folders.runs, *folders.removed]
    if not runs:
        require_output(store)
    now = time.time()
    cutoff = now - older_than * DAY_SECONDS
    plans = [run.plan for run in folders.runs]
    for error in folders.unreadable.values():
        log.warning("%s It stays.", error)

    found: list[Garbage] = []
    recent_runs = 0
    all_garbage = map_ordered(lambda index: _find_garbage(runs[index], now), len(runs), READERS)
    with closing(all_garbage):
        for run, garbage in zip(runs, all_garbage, strict=True):
            if garbage is None:
                continue
            is_recent = garbage.days < older_than and not run.head.is_removed
            if is_recent or (remove and not remove_run(run, cutoff)):
                recent_runs += 1
                continue
            found.append(garbage)
    if not folders.unreadable:  # a plan that cannot be read may name rewritten prompts
        found += _collect_rewrites(store, plans, now, cutoff, remove=remove)
    return GcResult(store.uri, tuple(found), remove, recent_runs)


def remove_run(run: Run, cutoff: float) -> bool:
    """Remove an unfinished run; False if it was finished meanwhile, or somebody writes to it.

    The commit comes first: from then on nobody plans, generates or aggregates it.
    """
    run = run.at_head()
    store = run.store
    if not run.head.is_removed:
        is_old = all(_is_before(entry, cutoff) for entry in walk_objects(store))
        if not is_old or _was_finished(run):
            return False
        removed = replace(run.head.commit, kind="removed")
        if create_commit(store, run.head, removed) is None:
            return False
    _remove_objects(store, (entry for entry in walk_objects(store) if not _stays(entry)))
    for folder in _nested_folders(store):
        if folder != COMMITS_FOLDER:
            store.remove_folder(folder)
    return True


def _was_finished(run: Run) -> bool:
    """Tell if a run is finished, or was: later runs may have skipped its images."""
    return run.is_finished or run.store.exists(SUCCESS_KEY)


def _stays(entry: ObjectInfo) -> bool:
    """Tell if an object records that its run was removed."""
    return entry.key == PLAN_KEY or entry.key.startswith(f"{COMMITS_FOLDER}/")


def _collect_rewrites(
    store: Store, plans: Iterable[Plan], now: float, cutoff: float, *, remove: bool
) -> Iterator[Garbage]:
    """The rewritten prompts that no plan names and to which nothing was written since `cutoff`."""
    named = {plan.rewrite.folder for plan in plans if plan.rewrite is not None}
    for entry in store.list_folder(REWRITES_FOLDER):
        if not entry.is_folder or entry.key in named:
            continue
        objects = list(_rewrite_objects(store, entry.key))
        if not objects or not all(_is_before(each, cutoff) for each in objects):
            continue
        yield _describe_rewrite(store.uri_of(entry.key), objects, now)
        if remove:
            _remove_rewrite(store, entry.key, objects)


def _describe_rewrite(uri: str, objects: list[ObjectInfo], now: float) -> Garbage:
    newest = max(entry.modified or now for entry in objects)
    return Garbage(
        run=uri,
        reason="unused",
        objects=len(objects),
        bytes=sum(entry.size for entry in objects),
        days=(now - newest) / DAY_SECONDS,
    )


def _rewrite_objects(store: Store, folder: str) -> Iterator[ObjectInfo]:
    folders = (folder, f"{folder}/texts", f"{folder}/prompts")
    entries = chain.from_iterable(map(store.list_folder, folders))
    for entry in entries:
        matches = (pattern.fullmatch(entry.key) for pattern in REWRITE_KEY_PATTERNS)
        if any(matches):
            yield entry


def _remove_rewrite(store: Store, folder: str, objects: Iterable[ObjectInfo]) -> None:
    """Remove a rewrite so that what an interruption leaves can be rewritten on, or removed.

    The last list goes first: further prompts are appended to those that are there.
    """
    last_first = sorted((entry.key for entry in objects), reverse=True)
    for pattern in REWRITE_KEY_PATTERNS:
        for key in filter(pattern.fullmatch, last_first):
            _remove(store, key)
    for name in (f"{folder}/texts", f"{folder}/prompts", folder):
        store.remove_folder(name)


def _find_garbage(run: Run, now: float) -> Garbage | None:
    """An unfinished run, or what is left of it. If a store tells no age, an object is new."""
    is_removed = run.head.is_removed
    if not is_removed and _was_finished(run):
        return None
    count = 0
    size = 0
    newest = 0.0
    for entry in walk_objects(run.store):
        if is_removed and _stays(entry):
            continue
        count += 1
        size += entry.size
        newest = max(newest, now if entry.modified is None else entry.modified)
    if not count:
        return None
    days = (now - newest) / DAY_SECONDS
    return Garbage(run.store.uri, "unfinished", count, size, days)


def _is_before(entry: ObjectInfo, cutoff: float) -> bool:
    return entry.modified is not None and entry.modified <= cutoff


def _remove_objects(store: Store, objects: Iterable[ObjectInfo]) -> None:
    """Remove objects, several at a time. Those that are gone already do not matter."""
    keys = [entry.key for entry in objects]
    for _ in map_ordered(lambda place: _remove(store, keys[place]), len(keys), REMOVE_THREADS):
        pass


def _remove(store: Store, key: str) -> None:
    with suppress(Missing):
        store.remove(key)


def _nested_folders(store: Store) -> Iterator[str]:
    """The folders within a store, each before the one that it is in."""
    folders = [""]
    for folder in folders:
        folders += [entry.key for entry in store.list_folder(folder) if entry.is_folder]
    return reversed(folders[1:])


def walk_objects(store: Store) -> Iterator[ObjectInfo]:
    """Every object of the run in a store, and none that somebody else put beside them.

    The names of one folder are in memory, however many there are.
    """
    folders = [""]
    while folders:
        for entry in store.list_folder(folders.pop()):
            if entry.is_folder:
                folders.append(entry.key)
            elif RUN_KEY_PATTERN.fullmatch(entry.key):
                yield entry
