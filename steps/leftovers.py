"""Objects in a run's folder that look like ours and that nothing names: what killed writers left behind."""

import re
from collections.abc import Iterator

from imagekiln.steps import names, tables
from imagekiln.steps.errors import Missing
from imagekiln.steps.listed import Listed
from imagekiln.steps.plan import Plan
from imagekiln.steps.rounds import found
from imagekiln.steps.storage import Store

WRITING = ".writing-"  # what a disk's temporary files begin with
PART = re.compile(r"images/(\d{5,})-(\d{4,})\.(?:parquet|tar)")
IMAGE = re.compile(r"images/(\d{5,})/\d{4,}-\d{5,}\.(?:png|jpg|jpeg|webp|jxl)")


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
    for each in store.list("images"):
        if each.is_folder:
            yield from _unnamed_images(store, frozen, each.key)
        elif _is_unplanned(each.key, frozen):
            yield each
    for again in found(store, frozen):
        folder = names.round_folder(again.plan.round)
        for each in store.list(f"{folder}/images"):
            if not each.is_folder and _is_unplanned(each.key.removeprefix(f"{folder}/"), again.plan):
                yield each


def _is_unplanned(key: str, frozen: Plan) -> bool:
    there = PART.fullmatch(key)
    if there is None:
        return False
    shard, part = int(there[1]), int(there[2])
    return shard >= len(frozen.shards) or part >= frozen.parts(shard)


def _unnamed_images(store: Store, frozen: Plan, folder: str) -> Iterator[Listed]:
    """Images in a shard's folder that another attempt made and the one that was committed did not."""
    number = folder.rpartition("/")[2]
    if not number.isascii() or not number.isdecimal() or int(number) >= len(frozen.shards):
        return
    try:
        named = set(tables.column(store, names.manifest(int(number)), "part").to_pylist())
    except Missing:
        return
    for each in store.list(folder):
        if not each.is_folder and IMAGE.fullmatch(each.key) and each.key not in named:
            yield each
