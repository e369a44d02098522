"""Reads a whole run back and checks it against the plan and the manifest, by hash."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import beside, formats, kept_inputs, names, originals, plan, rounds, shard, tables
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.formats import PartFormat
from imagekiln.steps.in_order import map_ordered
from imagekiln.steps.plan import Plan
from imagekiln.steps.readback import CheckResult, check_failure, run_check
from imagekiln.steps.room import ByteBudget
from imagekiln.steps.rounds import Round, RunReconciler
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store, open_store

MAX_BYTES_IN_FLIGHT = 2**30  # bytes of the parts that are read at a time, however many readers there are


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was read back: images with good bytes, and how many bytes."""

    run: str
    images: int
    ok: int
    bytes: int


def verify(uri: str) -> VerifyResult:
    """Read every object of the run at `uri`. Raises Incomplete with a list where anything is missing or differs."""
    run, _ = rounds.resolve_run(uri)
    store = open_store(run)
    frozen = plan.load_plan(store)
    if not store.exists(names.SUCCESS_KEY):
        raise Incomplete(f"{store.uri}: has no {names.SUCCESS_KEY}, so it is not finished. Run or aggregate it first.")
    room, again = ByteBudget(MAX_BYTES_IN_FLIGHT), RunReconciler(store, frozen)
    checked = sum(
        map_ordered(lambda number: _check_shard(store, again, frozen, number, room), len(frozen.shards)), CheckResult()
    )
    for each in again.rounds:
        check = partial(_check_round_shard, each, each.is_finished, room)
        checked += sum(map_ordered(check, len(each.plan.shards)), CheckResult())
    checked += beside.check_metadata_objects(store, frozen) + run_check(
        lambda: _check_listings(store, again.round_metadata_tables())
    )
    if checked.error_count:
        more = (
            f" and {checked.error_count - len(checked.errors)} more"
            if checked.error_count > len(checked.errors)
            else ""
        )
        raise Incomplete(f"{store.uri}: {'; '.join(checked.errors)}{more}. {_remedy(again)}")
    return VerifyResult(store.uri, checked.images, checked.ok, checked.bytes)


def _remedy(again: RunReconciler) -> str:
    """What to do: what a round made since the run was aggregated is in no manifest yet, and that is no damage."""
    for each in again.rounds:
        if not each.is_finished:
            return f"Round {each.plan.round} is not finished: retry the run again, and it goes on with it; then verify."
    return "Restore these objects, or make them again."


def _check_shard(store: Store, again: RunReconciler, frozen: Plan, number: int, room: ByteBudget) -> CheckResult:
    """The parts of one shard and its manifest, which tells how many images are good where nothing is wrong."""
    try:
        wanted = shard.read_shard(store, frozen, number)
    except BadInput as error:
        return check_failure(error)
    rows = pa.concat_tables([part.rows for part in wanted])
    kept = sum(map(check_failure, kept_inputs.input_image_errors(store, rows)), CheckResult())
    layout = formats.format_of(frozen.job)
    try:
        latest = again.reconcile(number).manifest
    except BadInput as error:
        return sum((_check_part(store, part, layout, room) for part in wanted), check_failure(error) + kept)
    good = latest.filter(pc.equal(latest["status"], "ok"))
    counts = kept + CheckResult(latest.num_rows, good.num_rows, pc.sum(good["size"]).as_py() or 0)
    size = frozen.part_images
    slices = (latest.slice(place * size, size) for place in range(len(wanted)))
    read = (
        part
        for part, rows in zip(wanted, slices, strict=True)
        if not (again.rounds and _is_replaced_by_round(store, part, rows))
    )
    counts += run_check(lambda: _check_manifest(store, frozen, number, latest))
    return sum((_check_part(store, part, layout, room) for part in read), counts)


def _check_round_shard(each: Round, finished: bool, room: ByteBudget, number: int) -> CheckResult:
    try:
        wanted = shard.read_shard(each.store, each.plan, number)
    except BadInput as error:
        return check_failure(error)
    layout = formats.format_of(each.plan.job)
    there = (part for part in wanted if finished or each.store.exists(part.key))  # some, while it is being made
    return sum((_check_part(each.store, part, layout, room) for part in there), CheckResult())


def _is_replaced_by_round(store: Store, part: Part, rows: pa.Table) -> bool:
    """Whether a part is not there, but every image of it is in a later round."""
    return rows["part"].null_count == 0 and not store.exists(part.key)


def _check_part(store: Store, part: Part, layout: PartFormat, room: ByteBudget) -> CheckResult:
    # An image is no larger than its pixels, but for a few bytes.
    with room.reserve(3 * pc.sum(pc.multiply(part.rows["width"], part.rows["height"])).as_py()):
        checked = layout.check(store, part)
    return CheckResult(errors=checked.errors, error_count=checked.error_count)


def _check_manifest(store: Store, frozen: Plan, number: int, latest: pa.Table) -> str | None:
    key = names.manifest_key(number)
    there, wanted = tables.read_table(store, key), latest
    if frozen.job.gates.near_duplicate is not None and there.schema == wanted.schema and len(there) == len(wanted):
        wanted = originals.mark_near_duplicates(
            wanted, there["near_duplicate_of"]
        )  # finding them again would take the whole run
    if not there.equals(wanted):
        return f"{store.uri_of(key)}: differs from the parts"
    return _check_listings(store, formats.metadata_tables(frozen.job, latest))


def _check_listings(store: Store, wanted: Iterable[tuple[str, pa.Table]]) -> str | None:
    differs = (key for key, table in wanted if not tables.read_table(store, key).equals(table))
    return next((f"{store.uri_of(key)}: differs from the manifest" for key in differs), None)
