"""Removing: objects by the thousand, and runs in an order in which half a run never passes for a whole one."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

from imagekiln.steps import leftovers, names
from imagekiln.steps.errors import Missing
from imagekiln.steps.listed import ObjectInfo
from imagekiln.steps.storage import Store

REMOVE_THREADS = 8
REMOVE_BATCH = 1000


def remove_run(store: Store) -> None:
    """Remove a run: what makes it look whole first, should it have been finished meanwhile, and its plan last."""
    if store.exists(names.SUCCESS_KEY):
        store.remove(names.SUCCESS_KEY)
    remove_objects(store, (each for each in leftovers.walk_objects(store) if each.key != names.PLAN_KEY))
    if store.exists(names.PLAN_KEY):
        store.remove(names.PLAN_KEY)
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
