"""The rounds of a run: what `retry` made again, and what each image has come to in the latest of them.

An image that is ok stays as it is; of the others, the latest round that holds one speaks.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.keys import PLAN_KEY, SUCCESS_KEY, round_folder
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

ROUND_FOLDER_PATTERN = re.compile(r"retry-[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Round:
    """One round, and the folder that it is in."""

    store: Store
    plan: Plan

    @property
    def is_finished(self) -> bool:
        """Whether all its images are accounted for, and were when the run was aggregated."""
        return self.store.exists(SUCCESS_KEY)

    def shards_covering(self, number: int) -> range:
        """The round's shards that hold images of one shard of the run."""
        covers = self.plan.source_shards
        first = bisect_left(covers, number, key=lambda each: each[1])
        return range(first, bisect_left(covers, number + 1, lo=first, key=lambda each: each[0]))


def resolve_run(uri: str) -> tuple[str, int]:
    """The run at `uri` and 0; where `uri` is one of a run's rounds, that run and the round's number."""
    run, _, folder = uri.rstrip("/").rpartition("/")
    if ROUND_FOLDER_PATTERN.fullmatch(folder) and (number := load_plan(open_store(uri)).round):
        return run or ".", number
    return uri, 0


def iter_rounds(store: Store, frozen: Plan) -> Iterator[Round]:
    """The rounds of the run in `store`, the first one first. Raises BadInput where one is of another run."""
    number = 1
    while store.exists(f"{round_folder(number)}/{PLAN_KEY}"):
        inside = open_store(f"{store.uri}/{round_folder(number)}")
        there = load_plan(inside)
        if (there.round, there.run_id, there.model.digest) != (
            number,
            frozen.run_id,
            frozen.model.digest,
        ):
            raise BadInput(f"{inside.uri}: is no round of this run. Restore it, or move it away.")
        yield Round(inside, there)
        number += 1
