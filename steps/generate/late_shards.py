"""Shards of a run that are late, for a process that has finished its own.

They are looked for only once: toward the end of a run, when none waits for a device any more.
"""

import random
from collections.abc import Sequence

from imagekiln.steps.runs.attempts import read_begun
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.storage.store import Store

MAX_EXAMINED_LAST = 256  # shards, which are begun in about the order of their numbers
MAX_EXAMINED_OTHERS = 256  # of those before, some at random: one may have lost its pod often


def find_late_shards(store: Store, plan: Plan, own: int) -> list[int]:
    """The shards that others have begun and not finished, in an order that `own` decides.

    None while a shard is pending: its pod needs the device. Looks at 512 shards at most.
    """
    numbers = _examined_shards(len(plan.shards), own)
    is_done = read_begun(store, plan, frozenset(numbers))
    if any(number not in is_done for number in numbers):
        return []
    late = [number for number in numbers if not is_done[number]]
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


def parts_to_help_with(store: Store, plan: Plan, shard: int, own: int) -> Sequence[Part]:
    """The missing parts of a late shard from the last on, the first one as `own` decides.

    So its own process, which makes the first first, and several that help seldom make the same.
    """
    parts = missing_parts(store, read_shard(store, plan, shard))[::-1]
    first = random.Random(own).randrange(max(1, len(parts)))  # noqa: S311  # not a secret
    return [*parts[first:], *parts[:first]]
