"""Which parts of a shard are still to be made, wherever their images may have been made."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.runs.forgotten import NO_IDS, read_forgotten_ids
from imagekiln.steps.runs.formats import format_of, recover_parts
from imagekiln.steps.runs.keys import SUPERSEDED_KEY
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.rounds import iter_rounds
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.storage.store import Store


def parts_to_make(store: Store, plan: Plan, number: int, parts: Sequence[Part]) -> list[Part]:
    """Those of a shard's parts that are to be made. Commits parts that lack only their commit.

    Raises as `missing_parts`, `recover_parts` and `iter_rounds` do.
    """
    missing = recover_parts(store, format_of(plan.job), missing_parts(store, parts))
    return without_retried_parts(store, plan, number, missing)


def without_retried_parts(
    store: Store, plan: Plan, number: int, missing: Sequence[Part]
) -> list[Part]:
    """The missing parts without those that `retry` makes.

    A part of the run whose images are all in rounds, or taken down, is left to rounds once they
    have made any of it. What a superseded round lacks is left to later rounds.
    """
    if not missing:
        return []
    if plan.round:
        return [] if store.exists(SUPERSEDED_KEY) else list(missing)
    retried = _retried_images(store, plan, number)
    return [part for part in missing if not _is_retried(part, retried)]


@dataclass(frozen=True, slots=True)
class _RetriedImages:
    """The ids of images in rounds: of those that are or will be made, and of those that are.

    `planned` has those that were taken down, too: no round makes them.
    """

    planned: pa.Array
    made: pa.Array


def _is_retried(part: Part, retried: _RetriedImages) -> bool:
    image_ids = part.rows["image_id"]
    is_planned: bool = pc.all(pc.is_in(image_ids, retried.planned)).as_py()
    is_begun: bool = pc.any(pc.is_in(image_ids, retried.made)).as_py()
    return is_planned and is_begun


def _retried_images(store: Store, plan: Plan, number: int) -> _RetriedImages:
    """The images that the run's rounds have of one of its shards, and of some others.

    Commits parts of rounds that lack only their commit.
    """
    planned = [read_forgotten_ids(store)]
    made = [NO_IDS]
    for retry_round in iter_rounds(store, plan):
        round_store = retry_round.store
        part_format = format_of(retry_round.plan.job)
        is_superseded = retry_round.is_superseded
        for shard in retry_round.shards_covering(number):
            for part in read_shard(round_store, retry_round.plan, shard):
                image_ids = part.rows["image_id"].chunks
                is_made = round_store.exists(part.key) or part_format.recover(round_store, part)
                made += image_ids if is_made else []
                planned += image_ids if is_made or not is_superseded else []
    return _RetriedImages(pa.concat_arrays(planned), pa.concat_arrays(made))


def has_parts_to_make(store: Store, plan: Plan, shards: Sequence[int]) -> bool:
    """Whether parts of these shards are to be made. Commits parts that lack only their commit.

    Raises as `parts_to_make` does.
    """

    def has_parts(index: int) -> bool:
        number = shards[index]
        return bool(parts_to_make(store, plan, number, read_shard(store, plan, number)))

    with closing(map_ordered(has_parts, len(shards))) as results:
        return any(results)
