"""One shard's parts against the plan: every planned image with what became of it. Reads no image."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import formats, parts, shard, tables
from imagekiln.steps.plan import Plan
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store

MISSING_STATUS = "missing"  # the status of an image that is unaccounted for


@dataclass(frozen=True, slots=True)
class ReconciledShard:
    """A shard's manifest, one row for each planned image in the plan's order, and the parts that are not there."""

    manifest: pa.Table
    missing_parts: tuple[str, ...]


def reconcile_shard(store: Store, plan: Plan, number: int) -> ReconciledShard:
    """Compare one shard with its parts. Raises BadInput where a part is damaged or holds other images."""
    wanted = shard.read_shard(store, plan, number)
    found = [(part, _read_outcomes(store, part)) for part in wanted]
    layout = formats.format_of(plan.job)
    columns = [_result_columns(part, layout.object_keys(part), outcomes) for part, outcomes in found]
    rows = pa.concat_tables([part.rows for part in wanted])
    results = pa.concat_tables(columns)
    manifest = pa.Table.from_arrays(
        [*rows.columns, *results.columns], schema=pa.schema([*rows.schema, *results.schema])
    ).combine_chunks()
    return ReconciledShard(manifest, tuple(part.key for part, outcomes in found if outcomes is None))


def _read_outcomes(store: Store, part: Part) -> parts.PartOutcomes | None:
    if not store.exists(part.key):  # opening a name that is not there makes s3fs list
        return None
    outcomes = parts.read_outcomes(store, part.key, ["image_id", *tables.OUTCOME_SCHEMA.names])
    parts.require_same_images(store.uri_of(part.key), outcomes, part.rows)
    return outcomes


def _result_columns(part: Part, places: list[str], outcomes: parts.PartOutcomes | None) -> pa.Table:
    count = part.rows.num_rows
    if outcomes is None:
        unknown = [pa.nulls(count, field.type) for field in list(RESULT_SCHEMA)[1:]]
        return pa.Table.from_arrays([pa.array([MISSING_STATUS] * count), *unknown], schema=RESULT_SCHEMA)
    # An image that is not there lies nowhere: what says so is named instead.
    where = pc.if_else(pc.is_valid(outcomes.offsets), pa.array(places), part.key)
    place = [where, outcomes.offsets, pa.nulls(count, pa.string())]
    return pa.Table.from_arrays([*outcomes.table.drop_columns(["image_id"]).columns, *place], schema=RESULT_SCHEMA)


RESULT_SCHEMA = pa.schema([*tables.OUTCOME_SCHEMA, *tables.LOCATION_SCHEMA, *tables.NEAR_DUPLICATE_SCHEMA])
