"""Opening a run, and its rounds: what `retry` generated again, each in a folder within the run.

An image that is ok stays as it is. Of any other image, the latest round that holds it has the say.
Where a late process also makes an image of a round, the one that the manifest names stays.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.keys import (
    PLAN_KEY,
    SUCCESS_KEY,
    SUPERSEDED_KEY,
    SUSPENDED_KEY,
    round_folder,
)
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.storage import open_folder, open_store
from imagekiln.steps.storage.store import Store

ROUND_FOLDER_PATTERN = re.compile(r"retry-[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Run:
    """A planned run: its folder and its plan.

    `round` is the number of the round by whose URI the run was opened, and 0 for the run's own.
    """

    store: Store
    plan: Plan
    round: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether the run was aggregated with success."""
        return self.store.exists(SUCCESS_KEY)

    @property
    def is_suspended(self) -> bool:
        """Whether it was, until a process began to replace what it holds."""
        return self.store.exists(SUSPENDED_KEY)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a run: its folder and its plan."""

    store: Store
    plan: Plan

    @property
    def is_finished(self) -> bool:
        """Whether all its images were accounted for when the run was last aggregated."""
        return self.store.exists(SUCCESS_KEY)

    @property
    def is_superseded(self) -> bool:
        """Whether what it lacked was left to later rounds."""
        return self.store.exists(SUPERSEDED_KEY)

    @property
    def has_ended(self) -> bool:
        """Whether no part of it is made any more."""
        return self.is_finished or self.is_superseded

    def supersede(self) -> None:
        """Leave what it lacks to later rounds."""
        self.store.create(SUPERSEDED_KEY, b"Later rounds make what this one lacks.\n")

    def shards_covering(self, number: int) -> range:
        """The round's shards that hold images of one shard of the run."""
        source_shards = self.plan.source_shards
        start = bisect_left(source_shards, number, key=lambda first_last: first_last[1])
        stop = bisect_left(
            source_shards, number + 1, lo=start, key=lambda first_last: first_last[0]
        )
        return range(start, stop)


def open_run(uri: str) -> Run:
    """The run at `uri`, which may also name one of its rounds.

    Raises Missing where there is no plan, BadInput where it cannot be read, TryAgain where storage
    fails.
    """
    run_uri, round_number = resolve_run(uri)
    store = open_store(run_uri)
    return Run(store, load_plan(store), round_number)


def resolve_run(uri: str) -> tuple[str, int]:
    """The URI of the run at `uri`, and 0; where `uri` is one of its rounds, the round's number."""
    parent, _, folder = uri.rstrip("/").rpartition("/")
    if ROUND_FOLDER_PATTERN.fullmatch(folder) is None:
        return uri, 0
    number = load_plan(open_store(uri)).round
    if number == 0:  # a run that happens to have such a name
        return uri, 0
    return parent or ".", number


def iter_rounds(store: Store, plan: Plan) -> Iterator[Round]:
    """The rounds of the run in `store`, in order. Raises BadInput where one is of another run."""
    number = 1
    while store.exists(f"{round_folder(number)}/{PLAN_KEY}"):
        round_store = open_folder(store, round_folder(number))
        round_plan = load_plan(round_store)
        if not _is_round_of(plan, round_plan, number):
            raise BadInput(
                f"{round_store.uri}: is not a round of this run. Restore it, or move it away."
            )
        yield Round(round_store, round_plan)
        number += 1


def _is_round_of(plan: Plan, round_plan: Plan, number: int) -> bool:
    return (
        round_plan.round == number
        and round_plan.run_id == plan.run_id
        and round_plan.model.digest == plan.model.digest
        and all(last < len(plan.shards) for _, last in round_plan.source_shards)
    )
