"""One shard's parts against the plan: every planned image with what became of it. Reads no image."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import formats, parts, shard, tables
from imagekiln.steps.plan import Plan
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store

MISSING = "missing"  # the status of an image that is unaccounted for


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A shard's manifest, one row for each planned image in the plan's order, and the parts that are not there."""

    manifest: pa.Table
    missing: tuple[str, ...]


def reconcile(store: Store, plan: Plan, number: int) -> Reconciled:
    """Compare one shard with its parts. Raises BadInput where a part is damaged or holds other images."""
    wanted = shard.read(store, plan, number)
    found = [(part, _outcomes(store, part)) for part in wanted]
    layout = formats.chosen(plan.job)
    columns = [_with_place(part, layout.places(part), outcomes) for part, outcomes in found]
    rows = pa.concat_tables([part.rows for part in wanted])
    results = pa.concat_tables(columns)
    manifest = pa.Table.from_arrays(
        [*rows.columns, *results.columns], schema=pa.schema([*rows.schema, *results.schema])
    ).combine_chunks()
    return Reconciled(manifest, tuple(part.key for part, outcomes in found if outcomes is None))


def _outcomes(store: Store, part: Part) -> parts.Outcomes | None:
    if not store.exists(part.key):  # opening a name that is not there makes s3fs list
        return None
    outcomes = parts.outcomes(store, part.key, ["image_id", *tables.OUTCOME.names])
    parts.refuse_others(store.at(part.key), outcomes, part.rows)
    return outcomes


def _with_place(part: Part, places: list[str], outcomes: parts.Outcomes | None) -> pa.Table:
    count = part.rows.num_rows
    if outcomes is None:
        unknown = [pa.nulls(count, field.type) for field in list(MANIFEST_TAIL)[1:]]
        return pa.Table.from_arrays([pa.array([MISSING] * count), *unknown], schema=MANIFEST_TAIL)
    # An image that is not there lies nowhere: what says so is named instead.
    where = pc.if_else(pc.is_valid(outcomes.offsets), pa.array(places), part.key)
    place = [where, outcomes.offsets, pa.nulls(count, pa.string())]
    return pa.Table.from_arrays([*outcomes.table.drop_columns(["image_id"]).columns, *place], schema=MANIFEST_TAIL)


MANIFEST_TAIL = pa.schema([*tables.OUTCOME, *tables.PLACE, *tables.NEAR])
