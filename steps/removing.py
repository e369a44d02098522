"""Removing: objects by the thousand, and runs in an order in which half a run never passes for a whole one."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

from imagekiln.steps import leftovers, names
from imagekiln.steps.errors import Missing
from imagekiln.steps.listed import Listed
from imagekiln.steps.storage import Store

REMOVERS = 8
AT_ONCE = 1000


def remove_run(store: Store) -> None:
    """Remove a run: what makes it look whole first, should it have been finished meanwhile, and its plan last."""
    if store.exists(names.SUCCESS):
        store.remove(names.SUCCESS)
    remove_objects(store, (each for each in leftovers.walk(store) if each.key != names.PLAN))
    if store.exists(names.PLAN):
        store.remove(names.PLAN)
    for folder in _folders(store, ""):
        store.remove_folder(folder)
    store.remove_folder("")


def remove_objects(store: Store, objects: Iterable[Listed]) -> None:
    """Remove objects, several at a time. One that is gone already is no matter."""
    waiting = iter(objects)
    with ThreadPoolExecutor(REMOVERS) as pool:
        while some := list(islice(waiting, AT_ONCE)):
            list(pool.map(lambda each: _remove(store, each.key), some))


def _remove(store: Store, key: str) -> None:
    with suppress(Missing):
        store.remove(key)


def _folders(store: Store, above: str) -> Iterator[str]:
    """The folders within one, the innermost first."""
    for each in list(store.list(above)):
        if each.is_folder:
            yield from _folders(store, each.key)
            yield each.key
