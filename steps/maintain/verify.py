"""Reads a whole run back and checks it against the plan and the manifest, by hash.

Images, input images and shards are compared with their hashes; the manifest, the index of images
and the numbers of images in the summary are made again from the parts. Not looked at: statistics,
times and costs, plots and thumbnails. Report, card and the lists of rejected and duplicate rows are
checked for being whole, not for what they say.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.near_duplicates import mark_near_duplicates
from imagekiln.steps.aggregate.reconcile import RunReconciler
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.errors import BadInput, Incomplete, Missing, TryAgain
from imagekiln.steps.maintain.recount import Recount
from imagekiln.steps.runs.account import count_entries
from imagekiln.steps.runs.forgotten import iter_stored_images
from imagekiln.steps.runs.formats import PartFormat, format_of, metadata_tables
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS, MISSING_STATUS
from imagekiln.steps.runs.image_id_index import RunImageIds
from imagekiln.steps.runs.integrity import (
    CheckResult,
    check_failure,
    run_check,
)
from imagekiln.steps.runs.keys import (
    SUCCESS_KEY,
    input_image_key,
    manifest_key,
    turn_key,
)
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.rounds import Round, Run, open_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.tables import (
    have_same_rows,
    read_table,
)
from imagekiln.steps.runtime.concurrency import ByteBudget, map_ordered
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.store import Store

MAX_BYTES_IN_FLIGHT = 2**30  # of the parts read at a time, however many readers there are
INPUT_READERS = 4
BYTES_PER_PIXEL = 3
# What is in parentheses was said by a library, perhaps in several sentences.
FIRST_SENTENCE = re.compile(r"(?:\(.*\)|.)*?(?=\. |\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was read back: the planned images, also by status, the stored ones, and their bytes."""

    run: str
    images: int
    ok: int
    bytes: int
    statuses: Mapping[str, int]


def verify(uri: str, max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT) -> VerifyResult:
    """Read every object of the run at `uri`.

    Raises Incomplete with a list where anything is missing or differs, TryAgain where another
    process changed the run meanwhile.
    """
    run = open_run(uri)
    turns = count_entries(run.store, turn_key)
    if not run.is_finished:
        raise Incomplete(
            f"{run.store.uri}: has no {SUCCESS_KEY}, so it is not finished. "
            "Run or aggregate it first."
        )
    reconciler = RunReconciler(run.store, run.plan)
    all_ended = all(retry_round.has_ended for retry_round in reconciler.rounds)
    rounds = len(reconciler.rounds) if all_ended else None
    with RunImageIds(run.plan.counts.images) as image_ids:
        recount = Recount(run.plan, rounds, image_ids)
        checked = _check_run(run, reconciler, recount, ByteBudget(max_bytes_in_flight))
    if checked.error_count:
        # What changes a run begins with a turn.
        if count_entries(run.store, turn_key) != turns or not open_run(uri).is_finished:
            raise TryAgain(
                f"{run.store.uri}: another process changed it while it was read. Run the command "
                "again once it has ended."
            )
        raise Incomplete(
            *_describe_errors(checked, run.store.uri), _advise(run, reconciler, checked)
        )
    statuses = load_summary(run.store).statuses
    return VerifyResult(run.store.uri, checked.images, checked.ok, checked.bytes, statuses)


def _describe_errors(checked: CheckResult, run: str) -> list[str]:
    """What is wrong, a line for each object or image, without the advice for a single one."""
    lines: dict[str, str] = {}
    for error in checked.errors:
        folder = run if error.startswith(run) else ""  # its name may have dots and colons
        sentence = _first_sentence(error.removeprefix(folder))
        place, _, problem = sentence.partition(": ")
        is_of_image = problem.startswith("image ")
        lines.setdefault(sentence if is_of_image else place, f"{folder}{sentence}.")
    unlisted = checked.error_count - len(checked.errors)
    more = [f"And {unlisted} more."] if unlisted else []
    return [*lines.values(), *more]


def _first_sentence(text: str) -> str:
    match = FIRST_SENTENCE.match(text)
    return match[0] if match else text


def _check_run(
    run: Run, reconciler: RunReconciler, recount: Recount, budget: ByteBudget
) -> CheckResult:
    check_shard = partial(_check_shard, run, reconciler, recount, budget)
    checked = sum(map_ordered(check_shard, len(run.plan.shards)), CheckResult())
    for retry_round in reconciler.rounds:
        checked += _check_round(run, reconciler, retry_round, budget)
    checked += recount.check(run.store)
    checked += run_check(lambda: _check_tables(run.store, reconciler.round_metadata_tables()))
    return checked


def _advise(run: Run, reconciler: RunReconciler, checked: CheckResult) -> str:
    """What to do. Images of an unfinished round are in no manifest yet, which is no damage."""
    for retry_round in reconciler.rounds:
        if not retry_round.has_ended:
            return (
                f"Round {retry_round.plan.round} is not finished: "
                "retry the run again to resume it, then verify."
            )
    if not checked.commands:
        aggregate = format_command("aggregate", run.store.uri)
        return (
            "Restore these objects. What aggregation writes, such as the manifest and the report, "
            f"is written again by: {aggregate}"
        )
    indexes = ", ".join(checked.indexes)
    remove = f" and these indexes ({indexes})" if indexes else ""
    return (
        "Restore these objects. Or generate them again: "
        f"first remove those that are damaged{remove}, then type: "
        + " && ".join([*checked.commands, format_command("verify", run.store.uri)])
    )


def _check_shard(
    run: Run, reconciler: RunReconciler, recount: Recount, budget: ByteBudget, number: int
) -> CheckResult:
    """The parts of one shard, their input images, and the shard's manifest."""
    try:
        parts = read_shard(run.store, run.plan, number)
    except BadInput as error:
        return check_failure(error)
    rows = pa.concat_tables([part.rows for part in parts])
    checked = sum(map(check_failure, input_image_errors(run.store, rows)), CheckResult())

    forgotten = frozenset(reconciler.forgotten.to_pylist())
    checked += _check_forgotten_images(run, run.store, parts, forgotten)
    try:
        manifest = reconciler.reconcile(number).manifest
    except BadInput as error:
        checked += check_failure(error)
        if reconciler.rounds:  # what is damaged may have the images of missing parts
            parts = tuple(part for part in parts if run.store.exists(part.key))
    else:
        checked += _count_images(manifest)
        checked += run_check(lambda: _check_manifest(run, recount, number, manifest))
        tables = partial(metadata_tables, run.plan.job, manifest)
        checked += run_check(lambda: _check_tables(run.store, tables()))
        if reconciler.rounds or forgotten:
            parts = tuple(_parts_not_replaced(run, parts, manifest))
    repair = _generate(run.store, number)
    return checked + _check_parts(run.store, run.plan, parts, budget, repair)


def _count_images(manifest: pa.Table) -> CheckResult:
    ok_rows = manifest.filter(pc.equal(manifest["status"], "ok"))
    total_bytes = pc.sum(ok_rows["byte_size"]).as_py() or 0
    return CheckResult(images=manifest.num_rows, ok=ok_rows.num_rows, bytes=total_bytes)


def _parts_not_replaced(run: Run, parts: Iterable[Part], manifest: pa.Table) -> Iterator[Part]:
    """The parts, without missing ones all of whose images are in later rounds, or taken down."""
    size = run.plan.part_images
    for index, part in enumerate(parts):
        statuses = manifest.slice(index * size, size)["status"]
        is_missing = pc.equal(statuses, MISSING_STATUS)
        has_missing = pc.any(is_missing).as_py()
        if has_missing or run.store.exists(part.key):
            yield part


def _check_round(
    run: Run, reconciler: RunReconciler, retry_round: Round, budget: ByteBudget
) -> CheckResult:
    superseded = retry_round.is_superseded
    has_all_parts = retry_round.is_finished and not superseded
    forgotten = frozenset(reconciler.forgotten.to_pylist())

    def check_shard(number: int) -> CheckResult:
        store = retry_round.store
        try:
            parts = read_shard(store, retry_round.plan, number)
        except BadInput as error:
            return check_failure(error)
        if not has_all_parts:  # some parts are still to be generated, or none of them any more
            parts = tuple(part for part in parts if store.exists(part.key))
        repair = _retry(run.store) if superseded else _generate(store, number)
        checked = _check_parts(store, retry_round.plan, parts, budget, repair)
        return checked + _check_forgotten_images(run, store, parts, forgotten)

    return sum(map_ordered(check_shard, len(retry_round.plan.shards)), CheckResult())


def _generate(store: Store, number: int) -> tuple[str, ...]:
    """What generates parts of a shard again."""
    command = format_command("generate", store.uri, f"--shard {number}")
    return (command,)


def _retry(store: Store) -> tuple[str, ...]:
    """What generates images of a superseded round again, in which nothing more is made."""
    aggregate = format_command("aggregate", store.uri)
    retry = format_command("retry", store.uri)
    return (aggregate, retry)


def _check_parts(
    store: Store, plan: Plan, parts: Iterable[Part], budget: ByteBudget, repair: tuple[str, ...]
) -> CheckResult:
    """The errors of a shard's parts. The commands of `repair` generate those parts again.

    Their images are not counted: a later round may replace them.
    """
    part_format = format_of(plan.job)
    errors = CheckResult()
    for part in parts:
        # An encoded image is no larger than its pixels, but for a few bytes.
        pixels = pc.sum(pc.multiply(part.rows["width"], part.rows["height"])).as_py()
        with budget.reserve(BYTES_PER_PIXEL * pixels):
            checked = part_format.check(store, part)
        if checked.error_count:
            errors += _describe_damage(store, part_format, part, checked, repair)
    return errors


def _check_forgotten_images(
    run: Run, store: Store, parts: Iterable[Part], forgotten: frozenset[str]
) -> CheckResult:
    """Whether parts hold images that were taken down, such as of a late process."""
    if not forgotten:
        return CheckResult()
    check = partial(_find_forgotten, run, store, forgotten)
    return sum((run_check(partial(check, part)) for part in parts), CheckResult())


def _find_forgotten(run: Run, store: Store, forgotten: frozenset[str], part: Part) -> str | None:
    part_format = format_of(run.plan.job)
    for image_id in iter_stored_images(store, part_format, part, forgotten):
        command = format_command("forget", run.store.uri, f"--id {image_id}", "--remove")
        where = store.uri_of(part.key)
        return f"{where}: holds image {image_id}, which was forgotten ({command})"
    return None


def _describe_damage(
    store: Store,
    part_format: PartFormat,
    part: Part,
    checked: CheckResult,
    repair: tuple[str, ...],
) -> CheckResult:
    """The errors of a part. A part whose index is there counts as generated."""
    is_own_index = part.key in part_format.object_keys(part)
    has_index = not is_own_index and store.exists(part.key)
    return CheckResult(
        errors=checked.errors,
        error_count=checked.error_count,
        commands=repair,
        indexes=(store.uri_of(part.key),) if has_index else (),
    )


def _check_manifest(run: Run, recount: Recount, number: int, manifest: pa.Table) -> str | None:
    """Compare the stored manifest of a shard with the one that follows from the parts."""
    key = manifest_key(number)
    stored = read_table(run.store, key)
    expected = manifest
    if (
        run.plan.job.gates.near_duplicate is not None
        and stored.schema == manifest.schema
        and len(stored) == len(manifest)
    ):
        # As stored: finding near-duplicates again would take the whole run.
        expected = mark_near_duplicates(manifest, stored["near_duplicate_of"])
    if not have_same_rows(stored, expected):
        return f"{run.store.uri_of(key)}: differs from the parts"
    recount.add(stored)  # last: a check that finds an error is made again
    return None


def _check_tables(store: Store, tables: Iterable[tuple[str, pa.Table]]) -> str | None:
    for key, table in tables:
        if not have_same_rows(read_table(store, key), table):
            return f"{store.uri_of(key)}: differs from the manifest"
    return None


def input_image_errors(store: Store, rows: pa.Table) -> Iterator[str]:
    """What is wrong with the input images of these rows, a sentence each.

    Raises TryAgain where storage fails.
    """
    digests: set[str] = set()
    for name in INPUT_IMAGE_COLUMNS:
        if name in rows.column_names:
            digests.update(rows[name].drop_null().unique().to_pylist())
    ordered = sorted(digests)
    errors = map_ordered(
        lambda index: _input_image_error(store, ordered[index]), len(ordered), INPUT_READERS
    )
    yield from (error for error in errors if error is not None)


def _input_image_error(store: Store, digest: str) -> str | None:
    key = input_image_key(digest)
    try:
        content = store.read(key)
    except Missing:
        return f"{store.uri_of(key)}: is missing"
    if hashlib.sha256(content).hexdigest() != digest:
        return f"{store.uri_of(key)}: has other bytes than were planned"
    return None
