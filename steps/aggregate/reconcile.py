"""One shard's parts against the plan: every planned image with what became of it. Reads no image."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import Incomplete
from imagekiln.steps.runs.formats import format_of, has_metadata_tables, metadata_tables
from imagekiln.steps.runs.image import MISSING_STATUS
from imagekiln.steps.runs.keys import SUCCESS_KEY, round_folder
from imagekiln.steps.runs.parts import Part, PartOutcomes, read_outcomes, require_same_images
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.rounds import iter_rounds
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import ShardStats, load_stats
from imagekiln.steps.runs.tables import LOCATION_SCHEMA, NEAR_DUPLICATE_SCHEMA, OUTCOME_SCHEMA
from imagekiln.steps.runtime.concurrency import SingleFlightCache, map_ordered
from imagekiln.steps.storage.store import Store


@dataclass(frozen=True, slots=True)
class ReconciledShard:
    """A shard's manifest, one row for each planned image in the plan's order, and the parts that are not there."""

    manifest: pa.Table
    missing_parts: tuple[str, ...]


def reconcile_shard(store: Store, plan: Plan, number: int) -> ReconciledShard:
    """Compare one shard with its parts. Raises BadInput where a part is damaged or holds other images."""
    wanted = read_shard(store, plan, number)
    found = [(part, _read_outcomes(store, part)) for part in wanted]
    layout = format_of(plan.job)
    columns = [
        _result_columns(part, layout.object_keys(part), outcomes) for part, outcomes in found
    ]
    rows = pa.concat_tables([part.rows for part in wanted])
    results = pa.concat_tables(columns)
    manifest = pa.Table.from_arrays(
        [*rows.columns, *results.columns], schema=pa.schema([*rows.schema, *results.schema])
    ).combine_chunks()
    return ReconciledShard(
        manifest, tuple(part.key for part, outcomes in found if outcomes is None)
    )


def _read_outcomes(store: Store, part: Part) -> PartOutcomes | None:
    if not store.exists(part.key):  # opening a name that is not there makes s3fs list
        return None
    outcomes = read_outcomes(store, part.key, ["image_id", *OUTCOME_SCHEMA.names])
    require_same_images(store.uri_of(part.key), outcomes, part.rows)
    return outcomes


def _result_columns(part: Part, places: list[str], outcomes: PartOutcomes | None) -> pa.Table:
    count = part.rows.num_rows
    if outcomes is None:
        unknown = [pa.nulls(count, field.type) for field in list(RESULT_SCHEMA)[1:]]
        return pa.Table.from_arrays(
            [pa.array([MISSING_STATUS] * count), *unknown], schema=RESULT_SCHEMA
        )
    # An image that is not there lies nowhere: what says so is named instead.
    where = pc.if_else(pc.is_valid(outcomes.offsets), pa.array(places), part.key)
    place = [where, outcomes.offsets, pa.nulls(count, pa.string())]
    return pa.Table.from_arrays(
        [*outcomes.table.drop_columns(["image_id"]).columns, *place], schema=RESULT_SCHEMA
    )


RESULT_SCHEMA = pa.schema([*OUTCOME_SCHEMA, *LOCATION_SCHEMA, *NEAR_DUPLICATE_SCHEMA])
CACHED_SHARDS_PER_ROUND = (
    4  # shards of each round at hand: shards of the run are looked at in order, several at a time
)


class RunReconciler:
    """A run with all its rounds. For several threads, which look at its shards more or less in order."""

    def __init__(self, store: Store, frozen: Plan) -> None:
        """Find the rounds there are."""
        self.rounds = tuple(iter_rounds(store, frozen))
        self.plan = frozen
        self._store = store
        self._missing: dict[tuple[int, int], tuple[str, ...]] = {}
        self._shard = SingleFlightCache(
            self._round_manifest, CACHED_SHARDS_PER_ROUND * max(1, len(self.rounds))
        )

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
            told = map_ordered(partial(load_stats, each.store), len(each.plan.shards))
            yield from (one for one in told if one is not None)

    def round_metadata_tables(self) -> Iterator[tuple[str, pa.Table]]:
        """What readers of the format want beside the images of the rounds, each with its key."""
        for each in self.rounds if has_metadata_tables(self.plan.job) else ():
            for shard in map_ordered(
                partial(reconcile_shard, each.store, each.plan), len(each.plan.shards)
            ):
                for key, table in metadata_tables(each.plan.job, shard.manifest):
                    yield f"{round_folder(each.plan.round)}/{key}", table

    def missing_parts(self, number: int) -> tuple[str, ...]:
        """The parts of one round that are not there, once every shard of the run is reconciled."""
        return tuple(
            key
            for place, keys in sorted(self._missing.items())
            if place[0] == number - 1
            for key in keys
        )

    def mark_finished_rounds(self) -> None:
        """Write down which rounds are finished, once everything else of them is written."""
        for each in self.rounds:
            if not self.missing_parts(each.plan.round):
                each.store.create(SUCCESS_KEY, f"{each.plan.counts.images} images\n".encode())

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
        named = pc.binary_join_element_wise(round_folder(place + 1), shard.manifest["part"], "/")
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
