"""Which shards of a run are late, for a process that has finished its own.

They are looked for only once: toward the end of a run, when none waits for a device any more.
"""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import compress
from typing import Literal

from imagekiln.steps.errors import Missing
from imagekiln.steps.runs.keys import part_work_key, shard_work_key
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.parts_to_make import without_retried_parts
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store

MAX_EXAMINED_LAST = 256  # shards, which are begun in about the order of their numbers
MAX_EXAMINED_OTHERS = 256  # of those before, some at random: one may have lost its pod often
CHECK_THREADS = 8
BEGUN = b"begun\n"
FINISHED = b"finished\n"
ShardState = Literal["pending", "begun", "finished"]


def find_late_shards(store: Store, plan: Plan, own: int) -> list[int]:
    """The shards that others have begun and not finished, in an order that `own` decides.

    None while a shard is pending: its pod needs the device. Asks for at most 512 objects.
    """
    numbers = _examined_shards(len(plan.shards), own)
    states = map_ordered(lambda index: read_state(store, numbers[index]), len(numbers))
    late = []
    with closing(states):
        for number, state in zip(numbers, states, strict=True):
            if state == "pending":
                return []
            if state == "begun":
                late.append(number)
    random.Random(own).shuffle(late)  # noqa: S311  # not a secret
    return late


def _examined_shards(count: int, own: int) -> list[int]:
    """The last shards first, which are the likeliest to be pending, then others."""
    first_of_last = max(0, count - MAX_EXAMINED_LAST)
    last = [number for number in range(first_of_last, count) if number != own]
    others = [number for number in range(first_of_last) if number != own]
    if len(others) > MAX_EXAMINED_OTHERS:
        others = random.Random(own).sample(others, MAX_EXAMINED_OTHERS)  # noqa: S311  # not a secret
    return [*reversed(last), *others]


def parts_to_help_with(store: Store, plan: Plan, shard: int) -> Sequence[Part]:
    """The missing parts of a late shard, the last first: its own process makes the first first."""
    parts = read_shard(store, plan, shard)[::-1]
    with ThreadPoolExecutor(CHECK_THREADS) as pool:
        is_committed = list(pool.map(store.exists, [part.key for part in parts]))
    missing = list(compress(parts, [not committed for committed in is_committed]))
    return without_retried_parts(store, plan, shard, missing)


def mark_begun(store: Store, shard: int) -> None:
    """Say that a process is at work on the shard, unless one has finished it."""
    store.create(shard_work_key(shard), BEGUN)


def mark_finished(store: Store, shard: int) -> None:
    """Say that nothing of the shard is missing."""
    store.replace(shard_work_key(shard), FINISHED)


def read_state(store: Store, shard: int) -> ShardState:
    """What was said of the shard last."""
    try:
        mark = store.read(shard_work_key(shard))
    except Missing:
        return "pending"
    return "finished" if mark == FINISHED else "begun"


def claim_part(store: Store, part: Part, helper: int) -> bool:
    """Say that the process of shard `helper` makes a part of another; False where one said so.

    Helpers alone heed it, so that no two of them draw the same part.
    """
    key = part_work_key(part.key)
    mark = f"made by that of shard {helper}\n"
    return store.create(key, mark.encode())
