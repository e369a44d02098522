"""An unfinished run of the same job, for a person who is about to begin another by mistake."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from imagekiln.steps.errors import KilnError
from imagekiln.steps.plan.step import fixed_settings
from imagekiln.steps.runs.keys import SUCCESS_KEY
from imagekiln.steps.runs.plan import InputFacts, Plan, load_plan
from imagekiln.steps.runs.shard import count_committed_images
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

MAX_LISTED = 10_000
MAX_FOLDERS = 64
MAX_PLANS = 8
READERS = 16
Values = dict[str, object]


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that two plans have with different values."""

    name: str
    planned: object
    current: object


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A run without success: how many of its images are committed, and what another has changed.

    `input` and `current_input` are the same where no file of the input has changed.
    """

    run_id: str
    images: int
    done: int
    differences: tuple[ChangedSetting, ...]
    input: InputFacts
    current_input: InputFacts


def find_unfinished_run(output: str, plan: Plan) -> UnfinishedRun | None:
    """The run under `output` of the job of `plan`, other than it, with the most images committed.

    None where there is none. It serves a note: only so much is listed and read, and what cannot be
    read is skipped.
    """
    with suppress(KilnError):
        runs = [
            UnfinishedRun(
                earlier.run_id,
                earlier.counts.images,
                count_committed_images(store, earlier),
                tuple(_iter_differences(fixed_settings(earlier.job), fixed_settings(plan.job))),
                earlier.input,
                plan.input,
            )
            for store, earlier in _iter_unfinished(output, plan)
        ]
        return max((run for run in runs if run.done), key=lambda run: run.done, default=None)
    return None


def _iter_unfinished(output: str, plan: Plan) -> Iterator[tuple[Store, Plan]]:
    output_store = open_store(output)
    listed = islice(output_store.list_folder(""), MAX_LISTED)
    names = [entry.key for entry in listed if entry.is_folder and entry.key != plan.run_id]
    prefix = f"{plan.job.name}-"
    names.sort(key=lambda name: (name.startswith(prefix), name), reverse=True)
    stores = [open_store(f"{output_store.uri}/{name}") for name in names[:MAX_FOLDERS]]
    with ThreadPoolExecutor(READERS) as pool:
        plans = list(pool.map(_read_unfinished, stores))
    pairs = zip(stores, plans, strict=True)
    yield from islice(
        ((store, found) for store, found in pairs if found and found.job.name == plan.job.name),
        MAX_PLANS,
    )


def _read_unfinished(store: Store) -> Plan | None:
    """The plan in a folder; None where there is none, or its run succeeded."""
    with suppress(KilnError):
        if not store.exists(SUCCESS_KEY):
            return load_plan(store)
    return None


def _iter_differences(
    planned: Values, current: Values, prefix: str = ""
) -> Iterator[ChangedSetting]:
    """The settings with other values; a group as a whole where it has other settings."""
    for name, old in planned.items():
        new = current.get(name)
        path = f"{prefix}{name}"
        if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
            yield from _iter_differences(old, new, f"{path}.")
        elif old != new:
            yield ChangedSetting(path, old, new)
