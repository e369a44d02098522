"""Objects in a run's folder that look like ours and that nothing names: what killed writers left behind."""

import re
from collections.abc import Iterator, Sequence

from imagekiln.steps import names, tables
from imagekiln.steps.errors import Missing
from imagekiln.steps.listed import Listed
from imagekiln.steps.plan import Plan
from imagekiln.steps.rounds import found
from imagekiln.steps.storage import Store

WRITING = ".writing-"  # what a disk's temporary files begin with
PART = re.compile(r"images/(\d{5,})-(\d{4,})\.(?:parquet|tar)")
IMAGE = re.compile(r"images/(\d{5,})/\d{4,}-\d{5,}\.(?:png|jpg|jpeg|webp)")


def walk(store: Store, folder: str = "") -> Iterator[Listed]:
    """Every object in a folder and those within it, one folder's names being held at a time."""
    for each in store.list(folder):
        if each.is_folder:
            yield from walk(store, each.key)
        else:
            yield each


def temporary(store: Store) -> Iterator[Listed]:
    """Files that were being written."""
    return (each for each in walk(store) if each.key.rpartition("/")[2].startswith(WRITING))


def unnamed(store: Store, frozen: Plan) -> Iterator[Listed]:
    """Of a finished run: parts that its plans do not know, and images of theirs that its manifest does not name."""
    yield from _unnamed(store, frozen, "", [(number, number) for number in range(len(frozen.shards))])
    for again in found(store, frozen):
        yield from _unnamed(store, again.plan, f"{names.round_folder(again.plan.round)}/", again.plan.covers)


def _unnamed(store: Store, frozen: Plan, above: str, covers: Sequence[tuple[int, int]]) -> Iterator[Listed]:
    """Of one plan, whose objects' names begin with `above`. Each shard's images are in the manifests it `covers`."""
    for each in store.list(f"{above}images"):
        if not each.is_folder:
            if _is_unplanned(each.key.removeprefix(above), frozen):
                yield each
        elif (shard := _number(each.key)) is not None and shard < len(covers):
            yield from _unnamed_images(store, each.key, above, covers[shard])


def _is_unplanned(key: str, frozen: Plan) -> bool:
    there = PART.fullmatch(key)
    if there is None:
        return False
    shard, part = int(there[1]), int(there[2])
    return shard >= len(frozen.shards) or part >= frozen.parts(shard)


def _number(folder: str) -> int | None:
    name = folder.rpartition("/")[2]
    return int(name) if name.isascii() and name.isdecimal() else None


def _unnamed_images(store: Store, folder: str, above: str, covers: tuple[int, int]) -> Iterator[Listed]:
    """Images in a shard's folder that another attempt made and the one that was committed did not."""
    try:
        manifests = [names.manifest(number) for number in range(covers[0], covers[1] + 1)]
        named = {part for key in manifests for part in tables.column(store, key, "part").to_pylist()}
    except Missing:
        return
    for each in store.list(folder):
        if not each.is_folder and IMAGE.fullmatch(each.key.removeprefix(above)) and each.key not in named:
            yield each
