"""The objects of a run in a store, and those of a finished one that nothing in it names."""

from collections.abc import Iterator
from itertools import chain

from imagekiln.steps.aggregate.reconcile import reconcile_shard
from imagekiln.steps.errors import Missing
from imagekiln.steps.runs.keys import (
    IMAGE_KEY_PATTERN,
    PART_IMAGES_KEY_PATTERN,
    RUN_KEY_PATTERN,
    manifest_key,
    round_folder,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.rounds import Round, Run, iter_rounds
from imagekiln.steps.runs.tables import read_column
from imagekiln.steps.storage.store import ObjectInfo, Store

TEMPORARY_PREFIX = ".writing-"  # of a local disk's temporary files


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
