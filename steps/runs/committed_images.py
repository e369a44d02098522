"""How many images of a run are committed, by one listing of its parts. For messages only."""

import re
from itertools import islice
from pathlib import PurePosixPath

from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage.store import Store

MAX_LISTED = 100_000
PART_NAME_PATTERN = re.compile(r"(\d{5,})-(\d{4,})\.parquet")


def count_committed_images(store: Store, plan: Plan) -> int:
    """The images of the parts that a listing shows; of a very large run, the first of them."""
    first_key = format_of(plan.job).commit_key(0, 0)
    folder = str(PurePosixPath(first_key).parent)
    listed = islice(store.list_folder(folder), MAX_LISTED)
    names = [PurePosixPath(entry.key).name for entry in listed]
    return sum(_count_images(name, plan) for name in names)


def _count_images(name: str, plan: Plan) -> int:
    """The images of the part with this name; 0 where it is none of the plan's."""
    match = PART_NAME_PATTERN.fullmatch(name)
    if match is None or int(match[1]) >= len(plan.shards):
        return 0
    shard = plan.shards[int(match[1])]
    first_image = int(match[2]) * plan.part_images
    return max(0, min(plan.part_images, shard.images - first_image))
