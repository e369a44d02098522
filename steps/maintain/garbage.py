"""Objects in a run's folder that look like ours and that nothing names: what killed writers left behind."""

import re
from collections.abc import Iterator, Sequence

from imagekiln.steps.errors import Missing
from imagekiln.steps.runs.keys import manifest_key, round_folder
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.rounds import iter_rounds
from imagekiln.steps.runs.tables import read_column
from imagekiln.steps.storage.store import ObjectInfo, Store

TEMPORARY_PREFIX = ".writing-"  # what a disk's temporary files begin with
PART_KEY = re.compile(r"images/(\d{5,})-(\d{4,})\.(?:parquet|tar)")
IMAGE_KEY = re.compile(r"images/(\d{5,})/\d{4,}-\d{5,}\.(?:png|jpg|jpeg|webp)")


def walk_objects(store: Store, folder: str = "") -> Iterator[ObjectInfo]:
    """Every object in a folder and those within it, one folder's names being held at a time."""
    for each in store.list_folder(folder):
        if each.is_folder:
            yield from walk_objects(store, each.key)
        else:
            yield each


def temporary_objects(store: Store) -> Iterator[ObjectInfo]:
    """Files that were being written."""
    return (
        each
        for each in walk_objects(store)
        if each.key.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
    )


def unreferenced_objects(store: Store, frozen: Plan) -> Iterator[ObjectInfo]:
    """Of a finished run: parts that its plans do not know, and images of theirs that its manifest does not name."""
    yield from _unreferenced_of_plan(
        store, frozen, "", [(number, number) for number in range(len(frozen.shards))]
    )
    for again in iter_rounds(store, frozen):
        yield from _unreferenced_of_plan(
            store, again.plan, f"{round_folder(again.plan.round)}/", again.plan.source_shards
        )


def _unreferenced_of_plan(
    store: Store, frozen: Plan, above: str, covers: Sequence[tuple[int, int]]
) -> Iterator[ObjectInfo]:
    """Of one plan, whose objects' names begin with `above`. Each shard's images are in the manifests it `covers`."""
    for each in store.list_folder(f"{above}images"):
        if not each.is_folder:
            if _is_unplanned_part(each.key.removeprefix(above), frozen):
                yield each
        elif (shard := _shard_number(each.key)) is not None and shard < len(covers):
            yield from _unreferenced_images(store, each.key, above, covers[shard])


def _is_unplanned_part(key: str, frozen: Plan) -> bool:
    there = PART_KEY.fullmatch(key)
    if there is None:
        return False
    shard, part = int(there[1]), int(there[2])
    return shard >= len(frozen.shards) or part >= frozen.part_count(shard)


def _shard_number(folder: str) -> int | None:
    name = folder.rpartition("/")[2]
    return int(name) if name.isascii() and name.isdecimal() else None


def _unreferenced_images(
    store: Store, folder: str, above: str, covers: tuple[int, int]
) -> Iterator[ObjectInfo]:
    """Images in a shard's folder that another attempt made and the one that was committed did not."""
    try:
        manifests = [manifest_key(number) for number in range(covers[0], covers[1] + 1)]
        named = {part for key in manifests for part in read_column(store, key, "part").to_pylist()}
    except Missing:
        return
    for each in store.list_folder(folder):
        if (
            not each.is_folder
            and IMAGE_KEY.fullmatch(each.key.removeprefix(above))
            and each.key not in named
        ):
            yield each
