"""Reads a whole run back and checks it against the plan and the manifest, by hash."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.near_duplicates import mark_near_duplicates
from imagekiln.steps.aggregate.reconcile import RunReconciler
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, Incomplete, Missing
from imagekiln.steps.job.gates import NEAR_DUPLICATE
from imagekiln.steps.runs.formats import PartFormat, format_of, metadata_tables
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS
from imagekiln.steps.runs.image_index import count_indexed_images
from imagekiln.steps.runs.integrity import CheckResult, check_failure, run_check
from imagekiln.steps.runs.keys import (
    CARD_KEY,
    DUPLICATES_KEY,
    REJECTED_KEY,
    REPORT_KEY,
    SUCCESS_KEY,
    SUMMARY_KEY,
    image_ids_key,
    input_image_key,
    manifest_key,
)
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.rounds import Round, resolve_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.tables import count_rows, read_column, read_table
from imagekiln.steps.runtime.concurrency import ByteBudget, map_ordered
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

SummaryLoader = Callable[[], Summary]


def check_metadata_objects(store: Store, frozen: Plan) -> CheckResult:
    """Whether all of it is there, whole, and says the same."""
    sums = cache(lambda: load_summary(store))
    checks: list[Callable[[], str | None]] = [
        lambda: _check_row_count(store, REJECTED_KEY, frozen.counts.rejected_rows),
        lambda: _check_row_count(store, DUPLICATES_KEY, frozen.counts.duplicate_images),
        lambda: _check_summary(store, frozen, sums),
        lambda: _check_near_duplicates(store, frozen, sums),
        lambda: _check_card(store),
        lambda: _check_image_index(store, sums),
        lambda: _check_report(store),
    ]
    return sum(map(run_check, checks), CheckResult())


def _check_row_count(store: Store, key: str, wanted: int) -> str | None:
    rows = count_rows(store, key)
    return (
        None
        if rows == wanted
        else f"{store.uri_of(key)}: has {rows} rows and not {wanted}, as planned"
    )


def _check_summary(store: Store, frozen: Plan, sums: SummaryLoader) -> str | None:
    same = sums().images == frozen.counts.images
    return None if same else f"{store.uri_of(SUMMARY_KEY)}: is of another plan"


def _check_near_duplicates(store: Store, frozen: Plan, sums: SummaryLoader) -> str | None:
    """They are marked once the manifest is there, so a manifest that was just written anew may lack them."""
    if frozen.job.gates.near_duplicate is None:
        return None
    columns = map_ordered(
        lambda number: read_column(store, manifest_key(number), "near_duplicate_of"),
        len(frozen.shards),
    )
    found = sum(len(column) - column.null_count for column in columns)
    marked = sums().marks.get(NEAR_DUPLICATE, 0)
    return (
        None
        if found == marked
        else f"{store.uri}: its manifest marks {found} near-duplicates and not {marked}"
    )


def _check_card(store: Store) -> str | None:
    whole = store.read(CARD_KEY).startswith(b"---\n")
    return None if whole else f"{store.uri_of(CARD_KEY)}: is no card of a dataset"


def _check_image_index(store: Store, sums: SummaryLoader) -> str | None:
    there, wanted = count_indexed_images(store), sums().ok
    return (
        None
        if there == wanted
        else f"{store.uri_of(image_ids_key(0))}: names {there} images and not {wanted}"
    )


def _check_report(store: Store) -> str | None:
    whole = store.read(REPORT_KEY).rstrip().endswith(b"</html>")
    return None if whole else f"{store.uri_of(REPORT_KEY)}: is no whole page"


INPUT_READERS = 4


def input_image_errors(store: Store, rows: pa.Table) -> Iterator[str]:
    """What is wrong with the pictures of these image rows, a sentence each. Raises TryAgain where storage fails."""
    columns = [rows[name] for name in INPUT_IMAGE_COLUMNS if name in rows.column_names]
    digests = sorted(
        {each for column in columns for each in column.unique().to_pylist() if each is not None}
    )
    found = map_ordered(
        lambda number: _input_image_error(store, digests[number]), len(digests), INPUT_READERS
    )
    yield from (each for each in found if each is not None)


def _input_image_error(store: Store, digest: str) -> str | None:
    key = input_image_key(digest)
    try:
        good = hashlib.sha256(store.read(key)).hexdigest() == digest
    except Missing:
        return f"{store.uri_of(key)}: is missing"
    return None if good else f"{store.uri_of(key)}: has other bytes than were planned"


MAX_BYTES_IN_FLIGHT = (
    2**30
)  # bytes of the parts that are read at a time, however many readers there are


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was read back: images with good bytes, and how many bytes."""

    run: str
    images: int
    ok: int
    bytes: int


def verify(uri: str) -> VerifyResult:
    """Read every object of the run at `uri`. Raises Incomplete with a list where anything is missing or differs."""
    run, _ = resolve_run(uri)
    store = open_store(run)
    frozen = load_plan(store)
    if not store.exists(SUCCESS_KEY):
        raise Incomplete(
            f"{store.uri}: has no {SUCCESS_KEY}, so it is not finished. Run or aggregate it first."
        )
    room, again = ByteBudget(MAX_BYTES_IN_FLIGHT), RunReconciler(store, frozen)
    checked = sum(
        map_ordered(
            lambda number: _check_shard(store, again, frozen, number, room), len(frozen.shards)
        ),
        CheckResult(),
    )
    for each in again.rounds:
        check = partial(_check_round_shard, each, each.is_finished, room)
        checked += sum(map_ordered(check, len(each.plan.shards)), CheckResult())
    checked += check_metadata_objects(store, frozen) + run_check(
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


def _check_shard(
    store: Store, again: RunReconciler, frozen: Plan, number: int, room: ByteBudget
) -> CheckResult:
    """The parts of one shard and its manifest, which tells how many images are good where nothing is wrong."""
    try:
        wanted = read_shard(store, frozen, number)
    except BadInput as error:
        return check_failure(error)
    rows = pa.concat_tables([part.rows for part in wanted])
    kept = sum(map(check_failure, input_image_errors(store, rows)), CheckResult())
    layout = format_of(frozen.job)
    try:
        latest = again.reconcile(number).manifest
    except BadInput as error:
        return sum(
            (_check_part(store, part, layout, room) for part in wanted), check_failure(error) + kept
        )
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
        wanted = read_shard(each.store, each.plan, number)
    except BadInput as error:
        return check_failure(error)
    layout = format_of(each.plan.job)
    there = (
        part for part in wanted if finished or each.store.exists(part.key)
    )  # some, while it is being made
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
    key = manifest_key(number)
    there, wanted = read_table(store, key), latest
    if (
        frozen.job.gates.near_duplicate is not None
        and there.schema == wanted.schema
        and len(there) == len(wanted)
    ):
        wanted = mark_near_duplicates(
            wanted, there["near_duplicate_of"]
        )  # finding them again would take the whole run
    if not there.equals(wanted):
        return f"{store.uri_of(key)}: differs from the parts"
    return _check_listings(store, metadata_tables(frozen.job, latest))


def _check_listings(store: Store, wanted: Iterable[tuple[str, pa.Table]]) -> str | None:
    differs = (key for key, table in wanted if not read_table(store, key).equals(table))
    return next((f"{store.uri_of(key)}: differs from the manifest" for key in differs), None)
