"""Reconciliation of a run with its plan: the outcome of every planned image. Reads no image."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.commits import Takedown
from imagekiln.steps.runs.image import MISSING_STATUS, OUTSCORED_STATUS
from imagekiln.steps.runs.keys import reduced_part_key
from imagekiln.steps.runs.manifest import forget_rows
from imagekiln.steps.runs.parts import (
    Part,
    PartOutcomes,
    join_outcome,
    read_outcomes,
    require_same_images,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import Run, read_shard_manifest, shards_covering
from imagekiln.steps.runs.shard import planned_shard_key, read_shard
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
    added_fields,
    outcome_schema,
    read_column,
)
from imagekiln.steps.runtime.concurrency import SingleFlightCache
from imagekiln.steps.storage.store import Store

NOT_MADE, NOTHING_STORED, STORED = range(3)  # progress of a place, see `overlay`
# Cached shards per retry. Shards of the run are reconciled in order, several at a time.
CACHED_RETRY_SHARDS = 4


@dataclass(frozen=True, slots=True)
class ReconciledShard:
    """A shard's manifest, with a row per planned image in order, and its missing parts."""

    manifest: pa.Table
    missing_parts: tuple[str, ...]


class RunReconciler:
    """Reconciler of a run's shards, which adds the parts that the highest commit lacks.

    Rows of parts that are already counted are taken from the commit's manifests. Several threads
    may reconcile shards, preferably in order.
    """

    def __init__(self, run: Run, takedown: Takedown | None = None) -> None:
        """Create a reconciler. It applies the `takedown`, whose parts must exist."""
        self._run = run
        self._takedown = takedown
        if takedown is not None:
            self._forgotten_ids = read_column(run.store, takedown.ids, "image_id")
        self._retries = [
            plan
            for plan, retry in zip(run.retry_plans, run.head.commit.retries, strict=True)
            if not retry.is_counted
        ]
        self._missing_of_retries: dict[tuple[int, int], tuple[str, ...]] = {}
        self._retry_shards = SingleFlightCache(
            self._reconcile_retry_shard,
            CACHED_RETRY_SHARDS * max(1, len(self._retries)),
        )

    def reconcile(self, number: int) -> ReconciledShard:
        """Reconcile one shard of the run, with the images of retries that are not yet counted.

        Raises BadInput if a part is damaged or has other images than planned, TryAgain.
        """
        run = self._run
        manifests = run.head.commit.manifests
        counted = None
        if number < len(manifests):
            counted = read_shard_manifest(run, number)
        shard = reconcile_shard(run.store, run.plan, number, counted)
        manifest = shard.manifest
        for index, plan in enumerate(self._retries):
            for retry_shard in shards_covering(plan, number):
                later = self._retry_shards((index, retry_shard))
                if later.schema != manifest.schema:
                    key = planned_shard_key(plan, retry_shard)
                    where = run.store.uri_of(key)
                    raise BadInput(f"{where}: has other columns than the run. Restore it.")
                manifest = overlay(manifest, later, plan.job.candidates)
        if self._takedown is not None:
            manifest = take_down(run, manifest, self._takedown, self._forgotten_ids)
        return ReconciledShard(manifest, shard.missing_parts)

    @property
    def missing_of_retries(self) -> tuple[str, ...]:
        """Missing parts of retries, complete after all shards of the run are reconciled."""
        missing_parts: list[str] = []
        for _, keys in sorted(self._missing_of_retries.items()):
            missing_parts.extend(keys)
        return tuple(missing_parts)

    def _reconcile_retry_shard(self, index_and_shard: tuple[int, int]) -> pa.Table:
        index, number = index_and_shard
        shard = reconcile_shard(self._run.store, self._retries[index], number)
        if shard.missing_parts:
            self._missing_of_retries[index_and_shard] = shard.missing_parts
        return shard.manifest


def take_down(run: Run, manifest: pa.Table, takedown: Takedown, image_ids: pa.Array) -> pa.Table:
    """Forget images in a manifest, and point the others to the reduced parts that hold them."""
    added = added_fields(run.plan.job)
    names = manifest["part"].unique().to_pylist()
    reduced_names = set(takedown.parts).intersection(names)
    for name in reduced_names:
        key = reduced_part_key(name, takedown.number)
        outcomes = read_outcomes(
            run.store,
            key,
            ["image_id"],
            added,
        )
        manifest = _move_rows(manifest, name, key, outcomes)
    return forget_rows(manifest, image_ids, added)


def _move_rows(manifest: pa.Table, name: str, key: str, outcomes: PartOutcomes) -> pa.Table:
    """Point the rows of the part `name` to the part `key`."""
    is_of_part = pc.equal(manifest["part"], name)
    is_moved = pc.fill_null(is_of_part, False)
    moved_ids = outcomes.table["image_id"].combine_chunks()
    places = pc.index_in(manifest["image_id"], moved_ids).combine_chunks()
    offsets = outcomes.offsets.take(places)
    replacements = {
        "part": key,
        "byte_offset": offsets,
    }
    for column, moved in replacements.items():
        values = pc.if_else(is_moved, moved, manifest[column])
        index = manifest.schema.get_field_index(column)
        field = manifest.schema.field(index)
        manifest = manifest.set_column(index, field, values)
    return manifest.combine_chunks()


def reconcile_shard(
    store: Store, plan: Plan, number: int, counted: pa.Table | None = None
) -> ReconciledShard:
    """Reconcile one shard of a run or retry with its parts, except parts that are already counted.

    `counted` is the manifest of the highest commit. Raises BadInput if a part is damaged or has
    other images than planned.
    """
    if counted is not None and not _has_status(counted, MISSING_STATUS).any():
        return ReconciledShard(counted, ())
    tables: list[pa.Table] = []
    missing_parts: list[str] = []
    first = 0
    for part in read_shard(store, plan, number):
        count = part.rows.num_rows
        known = None if counted is None else counted.slice(first, count)
        first += count
        if known is not None and not _has_status(known, MISSING_STATUS).all():
            tables.append(known)
            continue
        outcomes = _read_results(store, part)
        if outcomes is None:
            missing_parts.append(part.key)
            outcomes = _missing_results(part)
        table = join_outcome(part.rows, outcomes)
        tables.append(table)
    manifest = pa.concat_tables(tables).combine_chunks()
    return ReconciledShard(manifest, tuple(missing_parts))


def _has_status(manifest: pa.Table, status: str) -> npt.NDArray[np.bool_]:
    has_status: npt.NDArray[np.bool_] = pc.equal(manifest["status"], status).to_numpy()
    return has_status


def _read_results(store: Store, part: Part) -> pa.Table | None:
    """Read the outcomes and locations of a part's images; None if the part does not exist."""
    if not store.exists(part.key):  # s3fs lists the folder when it opens a missing object
        return None
    where = store.uri_of(part.key)
    names = ["image_id", *OUTCOME_SCHEMA.names]
    outcomes = read_outcomes(store, part.key, names, part.added)
    require_same_images(where, outcomes, part.rows)
    count = part.rows.num_rows
    outcome_columns = outcomes.table.drop_columns(["image_id"]).columns
    columns = [
        *outcome_columns,
        pa.repeat(pa.scalar(part.key), count),
        outcomes.offsets,
        pa.nulls(count, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=_result_schema(part))


def _result_schema(part: Part) -> pa.Schema:
    outcome = outcome_schema(part.added)
    return pa.schema([*outcome, *LOCATION_SCHEMA, *NEAR_DUPLICATE_SCHEMA])


def _missing_results(part: Part) -> pa.Table:
    rows = [{"status": MISSING_STATUS}] * part.rows.num_rows
    return pa.Table.from_pylist(rows, schema=_result_schema(part))


def overlay(manifest: pa.Table, later: pa.Table, candidates: int = 1) -> pa.Table:
    """Replace places of a manifest by places of a retry that made more progress.

    A place is a group of consecutive candidates, or a single image without candidates. It is
    replaced as a whole, so that it never has two winners. If neither stored an image, failures of
    the retry replace earlier failures. The operation is idempotent.
    """
    later_ids = later["image_id"].combine_chunks()
    position = pc.index_in(manifest["image_id"], later_ids)
    in_later = position.is_valid().to_numpy()
    later_rows = pc.fill_null(position, 0).to_numpy()
    own_place = _place_progress(manifest, candidates)
    later_place = _place_progress(later, candidates)[later_rows]

    # If neither stored an image, the newest failures count.
    is_empty = own_place == NOTHING_STORED
    stays_empty = is_empty & (later_place == NOTHING_STORED)
    had_lost = _has_status(manifest, OUTSCORED_STATUS)
    has_lost = _has_status(later, OUTSCORED_STATUS)[later_rows]
    fails_again = stays_empty & ~(had_lost | has_lost)
    came_further = later_place > own_place
    replaced = in_later & (came_further | fails_again)
    if not replaced.any():
        return manifest

    count = manifest.num_rows
    rows = np.where(
        replaced,
        count + later_rows,
        np.arange(count),
    )
    both = pa.concat_tables([manifest, later])
    return both.take(pa.array(rows)).combine_chunks()


def _place_progress(manifest: pa.Table, candidates: int) -> npt.NDArray[np.int64]:
    """Return the progress of each image's place, from NOT_MADE to STORED."""
    statuses = manifest["status"].to_numpy()
    place = np.zeros(manifest.num_rows, np.int64)
    is_made = np.asarray(statuses != MISSING_STATUS)
    is_stored = np.asarray(statuses == "ok")
    for mask in (is_made, is_stored):
        by_place = mask.reshape(-1, candidates)
        came_here = by_place.any(axis=1)
        place += came_here.repeat(candidates)
    return place
