"""What the processes at one run tell each other, so that one that is done can help another.

Nothing rests on it: parts alone say what is made. Where marks are lost or out of date, a process
helps in vain, or not at all.
"""

from typing import Literal

from imagekiln.steps.errors import Missing
from imagekiln.steps.runs.keys import part_work_key, shard_work_key
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.storage.store import Store

ShardState = Literal["pending", "begun", "finished"]

BEGUN = b"begun\n"
FINISHED = b"finished\n"


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
