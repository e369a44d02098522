"""The rounds of a run: what `retry` made again, and what each image has come to in the latest of them.

An image that is ok stays as it is; of the others, the latest round that holds one speaks.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import formats, names, plan, stats
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.in_order import map_ordered
from imagekiln.steps.plan import Plan
from imagekiln.steps.recent import SingleFlightCache
from imagekiln.steps.reconcile import MISSING_STATUS, ReconciledShard, reconcile_shard
from imagekiln.steps.stats import ShardStats
from imagekiln.steps.storage import Store, open_store

ROUND_FOLDER_PATTERN = re.compile(r"retry-[1-9][0-9]*")
CACHED_SHARDS_PER_ROUND = 4  # shards of each round at hand: shards of the run are looked at in order, several at a time


@dataclass(frozen=True, slots=True)
class Round:
    """One round, and the folder that it is in."""

    store: Store
    plan: Plan

    @property
    def is_finished(self) -> bool:
        """Whether all its images are accounted for, and were when the run was aggregated."""
        return self.store.exists(names.SUCCESS_KEY)

    def shards_covering(self, number: int) -> range:
        """The round's shards that hold images of one shard of the run."""
        covers = self.plan.source_shards
        first = bisect_left(covers, number, key=lambda each: each[1])
        return range(first, bisect_left(covers, number + 1, lo=first, key=lambda each: each[0]))


def resolve_run(uri: str) -> tuple[str, int]:
    """The run at `uri` and 0; where `uri` is one of a run's rounds, that run and the round's number."""
    run, _, folder = uri.rstrip("/").rpartition("/")
    if ROUND_FOLDER_PATTERN.fullmatch(folder) and (number := plan.load_plan(open_store(uri)).round):
        return run or ".", number
    return uri, 0


def iter_rounds(store: Store, frozen: Plan) -> Iterator[Round]:
    """The rounds of the run in `store`, the first one first. Raises BadInput where one is of another run."""
    number = 1
    while store.exists(f"{names.round_folder(number)}/{names.PLAN_KEY}"):
        inside = open_store(f"{store.uri}/{names.round_folder(number)}")
        there = plan.load_plan(inside)
        if (there.round, there.run_id, there.model.digest) != (number, frozen.run_id, frozen.model.digest):
            raise BadInput(f"{inside.uri}: is no round of this run. Restore it, or move it away.")
        yield Round(inside, there)
        number += 1


class RunReconciler:
    """A run with all its rounds. For several threads, which look at its shards more or less in order."""

    def __init__(self, store: Store, frozen: Plan) -> None:
        """Find the rounds there are."""
        self.rounds = tuple(iter_rounds(store, frozen))
        self.plan = frozen
        self._store = store
        self._missing: dict[tuple[int, int], tuple[str, ...]] = {}
        self._shard = SingleFlightCache(self._round_manifest, CACHED_SHARDS_PER_ROUND * max(1, len(self.rounds)))

    def reconcile(self, number: int) -> ReconciledShard:
        """One shard of the run, with what later rounds made of its images. Raises BadInput, TryAgain."""
        base = reconcile_shard(self._store, self.plan, number)
        latest = base.manifest
        for place, each in enumerate(self.rounds):
            for shard in each.shards_covering(number):
                latest = overlay(latest, self._shard((place, shard)))
        left = zip(self._missing_part_numbers(base.manifest), base.missing_parts, strict=True)
        still = set(self._missing_part_numbers(latest))
        return ReconciledShard(latest, tuple(key for part, key in left if part in still))

    def round_stats(self) -> Iterator[ShardStats]:
        """What the rounds' shards took, of those that told."""
        for each in self.rounds:
            told = map_ordered(partial(stats.load_stats, each.store), len(each.plan.shards))
            yield from (one for one in told if one is not None)

    def round_metadata_tables(self) -> Iterator[tuple[str, pa.Table]]:
        """What readers of the format want beside the images of the rounds, each with its key."""
        for each in self.rounds if formats.has_metadata_tables(self.plan.job) else ():
            for shard in map_ordered(partial(reconcile_shard, each.store, each.plan), len(each.plan.shards)):
                for key, table in formats.metadata_tables(each.plan.job, shard.manifest):
                    yield f"{names.round_folder(each.plan.round)}/{key}", table

    def missing_parts(self, number: int) -> tuple[str, ...]:
        """The parts of one round that are not there, once every shard of the run is reconciled."""
        return tuple(key for place, keys in sorted(self._missing.items()) if place[0] == number - 1 for key in keys)

    def mark_finished_rounds(self) -> None:
        """Write down which rounds are finished, once everything else of them is written."""
        for each in self.rounds:
            if not self.missing_parts(each.plan.round):
                each.store.create(names.SUCCESS_KEY, f"{each.plan.counts.images} images\n".encode())

    def require_finished(self, number: int) -> None:
        """Raise Incomplete where parts of this round are not there."""
        if number and (missing := self.missing_parts(number)):
            raise Incomplete(
                f"{self.rounds[number - 1].store.uri}: {len(missing)} parts of this round are missing, the first being "
                f"{missing[0]}. Retry the run again: it goes on with this round."
            )

    def _round_manifest(self, which: tuple[int, int]) -> pa.Table:
        """A round's shard, its parts named as seen from the run."""
        place, number = which
        each = self.rounds[place]
        shard = reconcile_shard(each.store, each.plan, number)
        if shard.missing_parts:
            self._missing[which] = shard.missing_parts
        column = shard.manifest.schema.get_field_index("part")
        named = pc.binary_join_element_wise(names.round_folder(place + 1), shard.manifest["part"], "/")
        return shard.manifest.set_column(column, shard.manifest.schema.field(column), named)

    def _missing_part_numbers(self, manifest: pa.Table) -> list[int]:
        """The numbers of a shard's parts that have an image which is unaccounted for."""
        gone = np.flatnonzero(pc.equal(manifest["status"], MISSING_STATUS).to_numpy())
        return [int(part) for part in np.unique(gone // self.plan.part_images)]


def overlay(manifest: pa.Table, later: pa.Table) -> pa.Table:
    """The manifest with rows of a later round in place of those that are not ok."""
    there = pc.index_in(manifest["image_id"], later["image_id"].combine_chunks())
    place = pc.fill_null(there, 0).to_numpy()
    open_still = pc.not_equal(manifest["status"], "ok").to_numpy() & there.is_valid().to_numpy()
    taken = open_still & (later["status"].to_numpy()[place] != MISSING_STATUS)
    if not taken.any():
        return manifest
    rows = np.where(taken, manifest.num_rows + place, np.arange(manifest.num_rows))
    return pa.concat_tables([manifest, later]).take(pa.array(rows)).combine_chunks()
