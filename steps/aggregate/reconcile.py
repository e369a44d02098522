"""Reconciles a run with its plan: every planned image and what became of it. Reads no image."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, Incomplete, StorageRefused
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.added_columns import added_fields, outcome_schema
from imagekiln.steps.runs.forgotten import forget_rows, read_forgotten
from imagekiln.steps.runs.formats import PartFormat, format_of, has_metadata_tables, metadata_tables
from imagekiln.steps.runs.image import MISSING_STATUS, OUTSCORED_STATUS
from imagekiln.steps.runs.keys import SUCCESS_KEY, round_folder, shard_key
from imagekiln.steps.runs.manifest import read_manifest_columns
from imagekiln.steps.runs.parts import (
    Part,
    PartOutcomes,
    join_outcome,
    read_outcomes,
    require_same_images,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.rounds import Round, iter_rounds
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import ShardStats, load_stats
from imagekiln.steps.runs.tables import LOCATION_SCHEMA, NEAR_DUPLICATE_SCHEMA, OUTCOME_SCHEMA
from imagekiln.steps.runtime.concurrency import SingleFlightCache, map_ordered
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.store import Store

NOT_MADE, NOTHING_STORED, LOSERS_STORED, HAS_WINNER = range(4)  # how far a place came
# Shards of each round in memory: shards of the run are reconciled in order, several at a time.
CACHED_SHARDS_PER_ROUND = 4


@dataclass(frozen=True, slots=True)
class ReconciledShard:
    """A shard's manifest, a row for each planned image in order, and its missing parts."""

    manifest: pa.Table
    missing_parts: tuple[str, ...]


def reconcile_shard(store: Store, plan: Plan, number: int) -> ReconciledShard:
    """Compare one shard with its parts.

    Raises BadInput where a part is damaged or holds other images than were planned.
    """
    parts = read_shard(store, plan, number)
    outcomes = [_read_outcomes(store, part) for part in parts]
    part_format = format_of(plan.job)
    results: list[pa.Table] = []
    missing_parts: list[str] = []
    for part, outcome in zip(parts, outcomes, strict=True):
        results.append(_part_results(part_format, part, outcome))
        if outcome is None:
            missing_parts.append(part.key)

    rows = pa.concat_tables([part.rows for part in parts])
    manifest = join_outcome(rows, pa.concat_tables(results))
    return ReconciledShard(manifest.combine_chunks(), tuple(missing_parts))


def _read_outcomes(store: Store, part: Part) -> PartOutcomes | None:
    if not store.exists(part.key):  # s3fs would list the folder on opening a missing object
        return None
    outcomes = read_outcomes(store, part.key, ["image_id", *OUTCOME_SCHEMA.names], part.added)
    require_same_images(store.uri_of(part.key), outcomes, part.rows)
    return outcomes


def _part_results(part_format: PartFormat, part: Part, outcomes: PartOutcomes | None) -> pa.Table:
    if outcomes is None:
        return _missing_results(part)
    # An image without bytes is in no object: the part, which has its status, is named instead.
    has_bytes = pc.is_valid(outcomes.offsets)
    keys = pc.if_else(has_bytes, pa.array(part_format.object_keys(part)), part.key)
    near_duplicates = pa.nulls(part.rows.num_rows, pa.string())
    outcome_columns = outcomes.table.drop_columns(["image_id"]).columns
    return pa.Table.from_arrays(
        [*outcome_columns, keys, outcomes.offsets, near_duplicates], schema=_result_schema(part)
    )


def _result_schema(part: Part) -> pa.Schema:
    outcome = outcome_schema(part.added)
    return pa.schema([*outcome, *LOCATION_SCHEMA, *NEAR_DUPLICATE_SCHEMA])


def _missing_results(part: Part) -> pa.Table:
    schema = _result_schema(part)
    count = part.rows.num_rows
    status_field, *other_fields = schema
    missing = [MISSING_STATUS] * count
    statuses = pa.array(missing, status_field.type)
    nulls = [pa.nulls(count, field.type) for field in other_fields]
    return pa.Table.from_arrays([statuses, *nulls], schema=schema)


class RunReconciler:
    """A run with all its rounds. Threads may reconcile its shards, best roughly in order."""

    def __init__(self, store: Store, plan: Plan) -> None:
        """Open the rounds of the run."""
        self.rounds = tuple(iter_rounds(store, plan))
        self.plan = plan
        self.forgotten = read_forgotten(store, plan)
        self._store = store
        self._missing_parts: dict[tuple[int, int], tuple[str, ...]] = {}
        round_count = max(1, len(self.rounds))
        self._round_manifest = SingleFlightCache(
            self._reconcile_round_shard,
            CACHED_SHARDS_PER_ROUND * round_count,
        )

    def reconcile(self, number: int) -> ReconciledShard:
        """One shard of the run, with what later rounds made of its images.

        Raises BadInput, TryAgain.
        """
        planned = reconcile_shard(self._store, self.plan, number)
        manifest = planned.manifest
        for index, retry_round in enumerate(self.rounds):
            for shard in retry_round.shards_covering(number):
                later = self._round_manifest((index, shard))
                if later.schema != manifest.schema:
                    where = retry_round.store.uri_of(shard_key(shard))
                    raise BadInput(f"{where}: has other columns than the run. Restore it.")
                read_named_parts = partial(self._read_named_parts, number)
                manifest = overlay(manifest, later, read_named_parts, self.plan.job.candidates)
        manifest = forget_rows(manifest, self.forgotten, added_fields(self.plan.job))

        keys = dict(
            zip(self._missing_part_numbers(planned.manifest), planned.missing_parts, strict=True)
        )
        still_missing = set(self._missing_part_numbers(manifest))
        return ReconciledShard(
            manifest, tuple(key for part, key in keys.items() if part in still_missing)
        )

    def round_stats(self) -> Iterator[ShardStats]:
        """The statistics of the rounds' shards, where they left any."""
        for retry_round in self.rounds:
            loaded = map_ordered(
                partial(load_stats, retry_round.store), len(retry_round.plan.shards)
            )
            yield from (stats for stats in loaded if stats is not None)

    def round_metadata_tables(self) -> Iterator[tuple[str, pa.Table]]:
        """The tables that readers of the format expect beside the rounds' images, with keys."""
        if has_metadata_tables(self.plan.job):
            yield from chain.from_iterable(map(_round_metadata_tables, self.rounds))

    def missing_parts(self, round_number: int) -> tuple[str, ...]:
        """The missing parts of one round, once every shard of the run is reconciled."""
        missing = sorted(self._missing_parts.items())
        return tuple(
            key for (index, _), keys in missing if index == round_number - 1 for key in keys
        )

    def mark_finished_rounds(self) -> None:
        """Mark the rounds that are complete, once everything about them is written."""
        for retry_round in self.rounds:
            if not self.missing_parts(retry_round.plan.round):
                retry_round.store.create(
                    SUCCESS_KEY, f"{retry_round.plan.counts.images} images\n".encode()
                )

    def require_round_complete(self, round_number: int) -> None:
        """Raise Incomplete where the round lacks parts. Number 0, the run itself, never does."""
        missing = self.missing_parts(round_number)
        if missing and not self.rounds[round_number - 1].is_superseded:
            uri = self.rounds[round_number - 1].store.uri
            parts = pluralize(len(missing), "part of this round is", "parts of this round are")
            raise Incomplete(
                f"{uri}: {parts} missing, the first of them {missing[0]}. "
                "Retry the run again to resume this round."
            )

    def _reconcile_round_shard(self, round_index_and_shard: tuple[int, int]) -> pa.Table:
        """The manifest of a round's shard, with its parts named relative to the run."""
        index, number = round_index_and_shard
        retry_round = self.rounds[index]
        shard = reconcile_shard(retry_round.store, retry_round.plan, number)
        if shard.missing_parts:
            self._missing_parts[round_index_and_shard] = shard.missing_parts

        column = shard.manifest.schema.get_field_index("part")
        parts = pc.binary_join_element_wise(
            round_folder(retry_round.plan.round), shard.manifest["part"], "/"
        )
        return shard.manifest.set_column(column, shard.manifest.schema.field(column), parts)

    def _read_named_parts(self, number: int) -> pa.Array:
        """What the stored manifest of a shard names for each image; nulls where it is damaged."""
        images = self.plan.shards[number].images
        try:
            stored = read_manifest_columns(self._store, number, images, ["part"])
        except StorageRefused:
            raise
        except BadInput:
            return pa.nulls(images, pa.string())
        return stored["part"].combine_chunks()

    def _missing_part_numbers(self, manifest: pa.Table) -> list[int]:
        """The numbers of a shard's parts that have a missing image."""
        is_missing = pc.equal(manifest["status"], MISSING_STATUS).to_numpy()
        missing_rows = np.flatnonzero(is_missing)
        part_of_row = missing_rows // self.plan.part_images
        parts: list[int] = np.unique(part_of_row).tolist()
        return parts


def _round_metadata_tables(retry_round: Round) -> Iterator[tuple[str, pa.Table]]:
    plan = retry_round.plan
    folder = round_folder(plan.round)
    reconcile = partial(reconcile_shard, retry_round.store, plan)
    for shard in map_ordered(reconcile, len(plan.shards)):
        for key, table in metadata_tables(plan.job, shard.manifest):
            yield f"{folder}/{key}", table


@dataclass(frozen=True, slots=True)
class _Standing:
    """For each image of a manifest: what came of it, and how far its place came.

    A place is the candidates of a prompt, which are neighbors, or the only image of one.
    """

    is_ok: npt.NDArray[np.bool_]
    has_won: npt.NDArray[np.bool_]
    is_outscored: npt.NDArray[np.bool_]
    place: npt.NDArray[np.int64]
    """From NOT_MADE to HAS_WINNER."""

    @property
    def has_lost(self) -> npt.NDArray[np.bool_]:
        """The losers that are stored."""
        return self.is_ok & ~self.has_won

    @property
    def is_best(self) -> npt.NDArray[np.bool_]:
        """What a place came so far by: its winner, or else the losers that are stored."""
        is_best: npt.NDArray[np.bool_] = self.has_won | (self.place == LOSERS_STORED)
        return self.is_ok & is_best

    def take(self, rows: npt.NDArray[np.int64]) -> "_Standing":
        """That of the images in these rows."""
        return _Standing(
            is_ok=self.is_ok[rows],
            has_won=self.has_won[rows],
            is_outscored=self.is_outscored[rows],
            place=self.place[rows],
        )


def _standing(manifest: pa.Table, candidates: int) -> _Standing:
    statuses = manifest["status"].to_numpy()
    is_ok = np.asarray(statuses == "ok")
    has_won = is_ok
    if candidates > 1:
        is_first = pc.fill_null(pc.equal(manifest[RANK_COLUMN], 1), False)
        has_won = is_ok & is_first.to_numpy()
    place = np.zeros(manifest.num_rows, np.int64)
    for mask in (statuses != MISSING_STATUS, is_ok, has_won):
        place += _share(mask, candidates)
    return _Standing(is_ok, has_won, np.asarray(statuses == OUTSCORED_STATUS), place)


def _share(mask: npt.NDArray[np.bool_], candidates: int) -> npt.NDArray[np.bool_]:
    """For each image, whether one of its place is in the mask."""
    places = mask.reshape(-1, candidates)
    shared: npt.NDArray[np.bool_] = places.any(axis=1).repeat(candidates)
    return shared


def overlay(
    manifest: pa.Table,
    later: pa.Table,
    read_named_parts: Callable[[], pa.Array],
    candidates: int = 1,
) -> pa.Table:
    """The manifest with the places of a later round that came further there.

    All images of a place are from one of the two, so that it has one winner, or none and a failure
    that another try may mend. But beside a winner, a stored loser stands for one that is not.

    Both may have come as far, where a late process commits a part that the round has made: of
    these, the one that the stored manifest names stays, so that a finished run does.
    """
    later_ids = later["image_id"].combine_chunks()
    position = pc.index_in(manifest["image_id"], later_ids)
    in_later = position.is_valid().to_numpy()
    later_rows = pc.fill_null(position, 0).to_numpy()
    own = _standing(manifest, candidates)
    theirs = _standing(later, candidates).take(later_rows)

    taken = in_later & (theirs.place > own.place)
    is_tie = in_later & (theirs.place == own.place)
    is_doubled = is_tie & (own.place > NOTHING_STORED)
    if is_doubled.any():
        later_numbers = pa.array(later_rows)
        later_parts = later["part"].take(later_numbers)
        named_parts = read_named_parts()
        named = pc.equal(later_parts, named_parts)
        is_named = pc.fill_null(named, False).to_numpy()
        names_best = is_named & theirs.is_best
        taken |= is_doubled & _share(names_best, candidates)
    replaced = in_later & _replaced_rows(own, theirs, taken)
    if not replaced.any():
        return manifest

    count = manifest.num_rows
    rows = np.where(replaced, count + later_rows, np.arange(count))
    both = pa.concat_tables([manifest, later])
    row_numbers = pa.array(rows)
    overlaid = both.take(row_numbers)
    return overlaid.combine_chunks()


def _replaced_rows(
    own: _Standing, theirs: _Standing, taken: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """The images of places that are taken, but for stored losers, which stay beside a winner.

    So do they come to a winner that stays. Where nothing is stored, the newest failures are told.
    """
    returns = taken & own.has_lost & ~theirs.is_ok
    returns &= theirs.place == HAS_WINNER
    comes = ~taken & theirs.has_lost & ~own.is_ok
    comes &= own.place == HAS_WINNER
    fails_again = own.place == NOTHING_STORED
    fails_again &= theirs.place == NOTHING_STORED
    fails_again &= ~own.is_outscored
    fails_again &= ~theirs.is_outscored
    stays_taken = taken & ~returns
    replaced: npt.NDArray[np.bool_] = stays_taken | comes | fails_again
    return replaced
