"""The finished runs under one output, by its registry, compared with the folders that are there."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import compress

from imagekiln.steps.errors import BadInput, Incomplete, StorageRefused
from imagekiln.steps.runs.keys import PLAN_KEY, REGISTRY_FOLDER, SUCCESS_KEY, SUSPENDED_KEY
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.registry import READERS, RunEntry, iter_successful, read_entries
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store


def find_finished_runs(output: str) -> list[RunEntry]:
    """The runs under `output` that succeeded and are still there, in the order of the registry.

    Also those whose objects are replaced just now, or were until that was interrupted. Raises
    BadInput on damage, such as of an entry that named another run, TryAgain where storage fails.
    """
    entries = read_entries(output)
    _require_entries(open_store(output), entries)
    return list(iter_successful(output, entries, also_suspended=True))


def refuse_unfinished(output: str) -> None:
    """Raise Incomplete where there is a run under an output: it is known to be unfinished."""
    store = open_store(output)
    for name in _list_folders(store):
        if store.exists(f"{name}/{PLAN_KEY}"):
            raise Incomplete(
                f"{store.uri}/{name}: is unfinished, as is all beside it. Run its job to the end."
            )


def _require_entries(store: Store, entries: Sequence[RunEntry]) -> None:
    """Raise BadInput where a finished run that is there has no entry: it would be left out."""
    known = {entry.run_id for entry in entries}
    names = [name for name in _list_folders(store) if name not in known]

    def is_finished_run(index: int) -> bool:
        return _is_finished_run(open_store(f"{store.uri}/{names[index]}"), names[index])

    unknown = list(compress(names, map_ordered(is_finished_run, len(names), READERS)))
    if unknown:  # or finished between the two looks
        known = {entry.run_id for entry in read_entries(store.uri)}
    for name in unknown:
        if name in known:
            continue
        uri = f"{store.uri}/{name}"
        raise BadInput(
            f"{uri}: is a finished run, and no entry in {REGISTRY_FOLDER}/ names it: that was "
            f"damaged or lost, or the run was moved here. Type `{format_command('aggregate', uri)}`"
            ", which registers it, or move it away."
        )


def _list_folders(store: Store) -> list[str]:
    """The names of an output's folders; none where they may not be listed, as over HTTP."""
    with suppress(StorageRefused):
        return [entry.key for entry in store.list_folder("") if entry.is_folder]
    return []


def _is_finished_run(folder: Store, name: str) -> bool:
    """Whether a folder has such a run; not where it may not be read, as a folder of others'."""
    with suppress(BadInput):
        is_finished = folder.exists(SUCCESS_KEY) or folder.exists(SUSPENDED_KEY)
        return is_finished and load_plan(folder).run_id == name
    return False
