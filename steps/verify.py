"""Reads a whole run back and checks it against the plan and the manifest, by hash."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps import beside, formats, kept_inputs, names, originals, plan, rounds, shard, tables
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.formats import Format
from imagekiln.steps.in_order import in_order
from imagekiln.steps.plan import Plan
from imagekiln.steps.readback import Checked, bad, told
from imagekiln.steps.room import Room
from imagekiln.steps.rounds import Round, Rounds
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store, open_store

IN_FLIGHT = 2**30  # bytes of the parts that are read at a time, however many readers there are


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read back: images with good bytes, and how many bytes."""

    run: str
    images: int
    ok: int
    bytes: int


def verify(uri: str) -> Verified:
    """Read every object of the run at `uri`. Raises Incomplete with a list where anything is missing or differs."""
    run, _ = rounds.home(uri)
    store = open_store(run)
    frozen = plan.load(store)
    if not store.exists(names.SUCCESS):
        raise Incomplete(f"{store.uri}: has no {names.SUCCESS}, so it is not finished. Run or aggregate it first.")
    room, again = Room(IN_FLIGHT), Rounds(store, frozen)
    checked = sum(in_order(lambda number: _shard(store, again, frozen, number, room), len(frozen.shards)), Checked())
    for each in again.all:
        check = partial(_round_shard, each, each.finished, room)
        checked += sum(in_order(check, len(each.plan.shards)), Checked())
    checked += beside.check(store, frozen) + told(lambda: _listings(store, again.listings()))
    if checked.wrongs:
        more = f" and {checked.wrongs - len(checked.wrong)} more" if checked.wrongs > len(checked.wrong) else ""
        raise Incomplete(f"{store.uri}: {'; '.join(checked.wrong)}{more}. {_remedy(again)}")
    return Verified(store.uri, checked.images, checked.ok, checked.bytes)


def _remedy(again: Rounds) -> str:
    """What to do: what a round made since the run was aggregated is in no manifest yet, and that is no damage."""
    for each in again.all:
        if not each.finished:
            return f"Round {each.plan.round} is not finished: retry the run again, and it goes on with it; then verify."
    return "Restore these objects, or make them again."


def _shard(store: Store, again: Rounds, frozen: Plan, number: int, room: Room) -> Checked:
    """The parts of one shard and its manifest, which tells how many images are good where nothing is wrong."""
    try:
        wanted = shard.read(store, frozen, number)
    except BadInput as error:
        return bad(error)
    rows = pa.concat_tables([part.rows for part in wanted])
    kept = sum(map(bad, kept_inputs.problems(store, rows)), Checked())
    layout = formats.chosen(frozen.job)
    try:
        latest = again.reconcile(number).manifest
    except BadInput as error:
        return sum((_part(store, part, layout, room) for part in wanted), bad(error) + kept)
    good = latest.filter(pc.equal(latest["status"], "ok"))
    counts = kept + Checked(latest.num_rows, good.num_rows, pc.sum(good["size"]).as_py() or 0)
    size = frozen.part_images
    slices = (latest.slice(place * size, size) for place in range(len(wanted)))
    read = (
        part for part, rows in zip(wanted, slices, strict=True) if not (again.all and _made_again(store, part, rows))
    )
    counts += told(lambda: _manifest(store, frozen, number, latest))
    return sum((_part(store, part, layout, room) for part in read), counts)


def _round_shard(each: Round, finished: bool, room: Room, number: int) -> Checked:
    try:
        wanted = shard.read(each.store, each.plan, number)
    except BadInput as error:
        return bad(error)
    layout = formats.chosen(each.plan.job)
    there = (part for part in wanted if finished or each.store.exists(part.key))  # some, while it is being made
    return sum((_part(each.store, part, layout, room) for part in there), Checked())


def _made_again(store: Store, part: Part, rows: pa.Table) -> bool:
    """Whether a part is not there, but every image of it is in a later round."""
    return rows["part"].null_count == 0 and not store.exists(part.key)


def _part(store: Store, part: Part, layout: Format, room: Room) -> Checked:
    # An image is no larger than its pixels, but for a few bytes.
    with room.taken(3 * pc.sum(pc.multiply(part.rows["width"], part.rows["height"])).as_py()):
        checked = layout.check(store, part)
    return Checked(wrong=checked.wrong, wrongs=checked.wrongs)


def _manifest(store: Store, frozen: Plan, number: int, latest: pa.Table) -> str | None:
    key = names.manifest(number)
    there, wanted = tables.read(store, key), latest
    if frozen.job.gates.near_duplicate is not None and there.schema == wanted.schema and len(there) == len(wanted):
        wanted = originals.marked_by(wanted, there["near_duplicate_of"])  # finding them again would take the whole run
    if not there.equals(wanted):
        return f"{store.at(key)}: differs from the parts"
    return _listings(store, formats.listings(frozen.job, latest))


def _listings(store: Store, wanted: Iterable[tuple[str, pa.Table]]) -> str | None:
    differs = (key for key, table in wanted if not tables.read(store, key).equals(table))
    return next((f"{store.at(key)}: differs from the manifest" for key in differs), None)
