"""Garbage collection: what unfinished runs and killed writers left under an output.

And rewritten prompts that no plan names. Listed, and removed only on request, and of runs only in
folders whose plan bears the folder's name. There, only objects with the key of one that a run
writes are removed: what somebody else put beside them stays, with its folder.
"""

import logging
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

from imagekiln.steps.aggregate.reconcile import reconcile_shard
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.maintain.run_list import READERS, find_runs, require_output
from imagekiln.steps.runs.keys import (
    IMAGE_KEY_PATTERN,
    PART_IMAGES_KEY_PATTERN,
    PLAN_KEY,
    REWRITE_KEY_PATTERNS,
    REWRITES_FOLDER,
    RUN_KEY_PATTERN,
    TURNS_FOLDER,
    manifest_key,
    round_folder,
    shard_key,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.registry import read_entries
from imagekiln.steps.runs.rounds import Round, Run, iter_rounds
from imagekiln.steps.runs.tables import read_column
from imagekiln.steps.runs.turns import TurnStore
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import ObjectInfo, Store

log = logging.getLogger(__name__)
DAY_SECONDS = 86_400.0
DEFAULT_AGE_DAYS = 7.0
REMOVE_THREADS = 8
REMOVE_BATCH = 1000
TEMPORARY_PREFIX = ".writing-"  # of a local disk's temporary files
GarbageReason = Literal["unfinished", "leftovers", "unused"]


@dataclass(frozen=True, slots=True)
class Garbage:
    """What may be removed of one run: all of an unfinished one, or the leftovers in a finished one.

    Where it is unused, `run` is the folder of rewritten prompts that no plan names. `days` is the
    time since the last of it was written.
    """

    run: str
    reason: GarbageReason
    objects: int
    bytes: int
    days: float


@dataclass(frozen=True, slots=True)
class GcResult:
    """The garbage under an output, and whether it was removed.

    `recent_runs` are the unfinished runs that stay since something was written to them lately.
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

    With `remove`, it is removed. A run loses its plan after its other objects, so that the rest of
    an interrupted removal is found again. A run that cannot be read stays, with a warning. Raises
    Missing where there is no such folder, BadInput where it is not the output of any job, TryAgain.
    """
    store = open_store(output)
    folders = find_runs(store)
    runs = folders.runs
    if not runs:
        require_output(store)
    now = time.time()
    cutoff = now - older_than * DAY_SECONDS
    plans = [run.plan for run in runs]
    needed_ids = _needed_ids(store, plans, folders.unreadable.values())

    def find_garbage(index: int) -> Garbage | None:
        try:
            return _find_garbage(runs[index], needed_ids, now, cutoff)
        except BadInput as error:
            log.warning("%s Nothing of its run is removed.", error)
            return None

    found: list[Garbage] = []
    recent_runs = 0
    all_garbage = map_ordered(find_garbage, len(runs), READERS)
    with closing(all_garbage):
        for run, garbage in zip(runs, all_garbage, strict=True):
            if garbage is None:
                continue
            if garbage.days < older_than:
                recent_runs += garbage.reason == "unfinished"
                continue
            if remove and not remove_garbage(run, garbage, cutoff):
                recent_runs += 1
                continue
            found.append(garbage)
    rewrites = _collect_rewrites(store, plans, now, cutoff, remove=remove)
    found += () if folders.unreadable else rewrites  # which a plan that cannot be read may name
    return GcResult(store.uri, tuple(found), remove, recent_runs)


def _needed_ids(store: Store, plans: Iterable[Plan], unreadable: Collection[BadInput]) -> set[str]:
    """The runs whose images later runs skipped: they may be the only copies, whatever their state.

    What a plan that cannot be read has skipped is among what ever succeeded.
    """
    needed_ids = {run_id for plan in plans for run_id in plan.existing_runs}
    for error in unreadable:
        log.warning("%s Whatever its run may need stays.", error)
    if unreadable:
        needed_ids.update(entry.run_id for entry in read_entries(store.uri))
    return needed_ids


def remove_garbage(run: Run, garbage: Garbage, cutoff: float) -> bool:
    """Remove what was found; False where the run turns out to be in use, or finished.

    Raises TryAgain where an unfinished run is aggregated meanwhile.
    """
    if garbage.reason == "leftovers":
        _remove_objects(run.store, _objects_before(find_leftovers(run), cutoff))
        return True
    return _remove_unfinished(run, cutoff)


def _remove_unfinished(run: Run, cutoff: float) -> bool:
    """Remove an unfinished run, unless somebody resumes it meanwhile.

    Its first shard goes first: planning then writes again what is removed. Its plan goes after all
    else but the turns, of which the last is ours until then. They go from the first on: whoever was
    frozen with an earlier one finds a later one, or his own gone. Raises TryAgain where the run is
    planned again or aggregated meanwhile.
    """
    store = run.store
    turn = TurnStore(store)  # no aggregation that began before will finish the run
    if run.is_finished or run.is_suspended:
        return False
    for batch in _batches(entry for entry in walk_objects(store) if not _is_last(entry)):
        if not all(_is_before(entry, cutoff) for entry in batch):
            return False
        _remove(turn, shard_key(0))
        _remove_objects(turn, batch)
    _remove(turn, PLAN_KEY)
    for key in sorted(entry.key for entry in store.list_folder(TURNS_FOLDER)):
        _remove(store, key)
    for folder in _nested_folders(store):
        store.remove_folder(folder)
    store.remove_folder("")
    return True


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


def _is_last(entry: ObjectInfo) -> bool:
    """Whether an object is removed after all others: what says whose turn it is, and the plan."""
    return entry.key == PLAN_KEY or entry.key.startswith(f"{TURNS_FOLDER}/")


def _find_garbage(run: Run, needed_ids: set[str], now: float, cutoff: float) -> Garbage | None:
    """The garbage of one run: of a finished one, where it is old enough.

    A suspended one is finished but for what was interrupted while it replaced its objects. Where a
    store does not tell how old an object is, the object counts as new.
    """
    finished = run.is_finished
    if not finished and (run.plan.run_id in needed_ids or run.is_suspended):
        return None
    objects = _objects_before(find_leftovers(run), cutoff) if finished else _run_objects(run.store)
    count = 0
    size = 0
    newest = 0.0
    for entry in objects:
        count += 1
        size += entry.size
        newest = max(newest, now if entry.modified is None else entry.modified)
    if not count:
        return None
    days = (now - newest) / DAY_SECONDS
    return Garbage(run.store.uri, "leftovers" if finished else "unfinished", count, size, days)


def _run_objects(store: Store) -> Iterator[ObjectInfo]:
    """The objects of a run, without those that say whose turn it was: a removal writes one too."""
    for entry in walk_objects(store):
        if not entry.key.startswith(f"{TURNS_FOLDER}/"):
            yield entry


def _objects_before(objects: Iterable[ObjectInfo], cutoff: float) -> Iterator[ObjectInfo]:
    return (entry for entry in objects if _is_before(entry, cutoff))


def _is_before(entry: ObjectInfo, cutoff: float) -> bool:
    return entry.modified is not None and entry.modified <= cutoff


def _batches(objects: Iterable[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    remaining = iter(objects)
    while batch := list(islice(remaining, REMOVE_BATCH)):
        yield batch


def _remove_objects(store: Store, objects: Iterable[ObjectInfo]) -> None:
    """Remove objects, several at a time. Those that are gone already do not matter."""
    with ThreadPoolExecutor(REMOVE_THREADS) as pool:
        for batch in _batches(objects):
            list(pool.map(lambda entry: _remove(store, entry.key), batch))


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


def find_leftovers(run: Run) -> Iterator[ObjectInfo]:
    """What killed writers, and attempts other than the committed ones, left in a finished run."""
    return chain(_temporary_objects(run.store), _unreferenced_objects(run))


def _temporary_objects(store: Store) -> Iterator[ObjectInfo]:
    """Files whose writing was interrupted."""
    for entry in walk_objects(store):
        if entry.key.rpartition("/")[2].startswith(TEMPORARY_PREFIX):
            yield entry


def _unreferenced_objects(run: Run) -> Iterator[ObjectInfo]:
    """Parts of a finished run that are in none of its plans, and images that nothing names."""
    for planned in chain([Round(run.store, run.plan)], iter_rounds(run.store, run.plan)):
        yield from _unreferenced_of_plan(run.store, planned)


def _unreferenced_of_plan(store: Store, planned: Round) -> Iterator[ObjectInfo]:
    """The same of the run's own plan or of one of its rounds. `store` is that of the run."""
    if not planned.has_ended:  # whoever resumes the round commits what lies there
        return
    plan = planned.plan
    prefix = f"{round_folder(plan.round)}/" if plan.round else ""
    for entry in store.list_folder(f"{prefix}images"):
        if not entry.is_folder:
            if _is_unplanned_part(entry.key.removeprefix(prefix), plan):
                yield entry
            continue
        shard = _shard_number(entry.key)
        if shard is not None and shard < len(plan.shards):
            yield from _unreferenced_images(store, planned, shard, entry.key, prefix)


def _is_unplanned_part(key: str, plan: Plan) -> bool:
    match = PART_IMAGES_KEY_PATTERN.fullmatch(key)
    if match is None:
        return False
    shard = int(match[1])
    part = int(match[2])
    return shard >= len(plan.shards) or part >= plan.part_count(shard)


def _shard_number(folder: str) -> int | None:
    name = folder.rpartition("/")[2]
    return int(name) if name.isascii() and name.isdecimal() else None


def _unreferenced_images(
    store: Store, planned: Round, shard: int, folder: str, prefix: str
) -> Iterator[ObjectInfo]:
    """Images in a shard's folder by an attempt other than the one that was committed."""
    try:
        referenced = {f"{prefix}{key}" for key in _committed_objects(planned, shard)}
        referenced |= _named_objects(store, planned.plan, shard)
    except Missing:
        return
    for entry in store.list_folder(folder):
        key = entry.key.removeprefix(prefix)
        is_image = not entry.is_folder and IMAGE_KEY_PATTERN.fullmatch(key)
        if is_image and entry.key not in referenced:
            yield entry


def _committed_objects(planned: Round, shard: int) -> list[str]:
    """What the parts of a shard consist of, also where the manifest names another round's copy."""
    parts = reconcile_shard(planned.store, planned.plan, shard).manifest["part"]
    committed: list[str] = parts.drop_null().to_pylist()
    return committed


def _named_objects(store: Store, plan: Plan, shard: int) -> set[str]:
    """What the manifests name of the shards of the run that a shard's images come from."""
    first, last = plan.source_shards[shard] if plan.round else (shard, shard)
    keys = map(manifest_key, range(first, last + 1))
    return {name for key in keys for name in read_column(store, key, "part").to_pylist()}
