"""Reads a whole run back and checks it against the plan and its highest commit, by hash.

Images, input images, shards, manifests and lists are compared with their hashes; each row of the
manifest with the part that it names; and the numbers of images in the commit are counted again. Not
looked at: attempts, times and costs and thumbnails. Report and card are checked for being
whole, not for what they say.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_counts import ImageCounts, count_images
from imagekiln.steps.aggregate.near_duplicates import without_near_duplicates
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, Incomplete, Missing, TryAgain
from imagekiln.steps.runs.commits import digest_of, is_highest
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS
from imagekiln.steps.runs.keys import (
    CARD_KEY,
    DIGEST_DIGITS,
    REPORT_KEY,
    commit_key,
    duplicates_key,
    input_image_key,
    parse_part_key,
    planned_part_key,
    rejected_key,
)
from imagekiln.steps.runs.part_file import check_part_images
from imagekiln.steps.runs.parts import Part, read_outcomes
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.readback import CheckResult, check_failure, run_check
from imagekiln.steps.runs.run import (
    Run,
    iter_named_parts,
    open_run,
    read_shard_manifest,
    retry_address,
)
from imagekiln.steps.runs.shard import read_shard, read_shard_rows
from imagekiln.steps.runs.tables import (
    LOCATION_SCHEMA,
    OUTCOME_SCHEMA,
    added_fields,
    have_same_rows,
)
from imagekiln.steps.runtime.concurrency import ByteBudget, map_ordered
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.store import Store

MAX_BYTES_IN_FLIGHT = 2**30  # of the parts read at a time, however many readers there are
INPUT_READERS = 4
BYTES_PER_PIXEL = 3
Check: TypeAlias = Callable[[], str | None]
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
    """Read every object of the run at `uri` that its highest commit names.

    Raises Incomplete with a list if anything is missing or differs, TryAgain if another process
    changed the run meanwhile.
    """
    run = open_run(uri)
    if not run.is_finished:
        raise Incomplete(f"{run.store.uri}: is not finished. Run or aggregate it first.")
    summary = load_summary(run.store)
    checked = _check_run(run, summary, ByteBudget(max_bytes_in_flight))
    if not checked.error_count:
        return VerifyResult(
            run=run.store.uri,
            images=checked.images,
            ok=checked.ok,
            bytes=checked.bytes,
            statuses=summary.statuses,
        )
    if not is_highest(run.store, run.head):
        raise TryAgain(
            f"{run.store.uri}: another process changed it while it was read. Run the command "
            "again once it has ended."
        )
    raise Incomplete(*_describe_errors(checked, run.store.uri), _advise(run, checked))


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


def _advise(run: Run, checked: CheckResult) -> str:
    """What to do about damage."""
    uri = run.store.uri
    advice = (
        "Restore these objects from a copy of the bucket. "
        f"`{format_command('aggregate', uri)}` writes report and card again, and "
        f"`{format_command('forget', uri)}` with the same ids removes forgotten images. "
    )
    if not checked.commands:
        return f"{advice}Images that are lost for good are made by a new run of the same rows."
    commands = [*checked.commands, format_command("verify", uri)]
    return (
        f"{advice}Or generate parts again, as the same device gives the same bytes: "
        f"first remove those that are damaged, then type: {' && '.join(commands)}"
    )


def _check_run(run: Run, summary: Summary, budget: ByteBudget) -> CheckResult:
    counts: list[ImageCounts] = []
    check_shard = partial(_check_shard, run, counts, budget)
    shards = map_ordered(check_shard, len(run.plan.shards))
    checked = sum(shards, CheckResult())

    checks: list[Check] = [
        *_checks(run),
        partial(_check_counts, run, summary, counts),
    ]
    others = map_ordered(lambda place: run_check(checks[place]), len(checks))
    return sum(others, checked)


def _checks(run: Run) -> Iterator[Check]:
    """The checks of all objects but the plan's shards and their parts."""
    store = run.store
    commit = run.head.commit
    keys = [
        rejected_key(run.plan.rejected),
        duplicates_key(run.plan.duplicates),
        *commit.manifests,
        *commit.image_ids,
    ]
    if commit.forgotten is not None:
        keys.append(commit.forgotten)
    for key in keys:
        yield partial(_check_digest, store, key)
    for plan in run.retry_plans:
        for shard in range(len(plan.shards)):
            yield partial(_check_rows, store, plan, shard)
    for key in commit.buried:
        yield partial(_check_buried, store, key)
    yield partial(_check_ends, store, CARD_KEY, b"---\n", b"")
    yield partial(_check_ends, store, REPORT_KEY, b"", b"</html>")


def _check_digest(store: Store, key: str) -> str | None:
    """Compare an object with the digest in its name."""
    if digest_of(store.read(key))[:DIGEST_DIGITS] in key:
        return None
    return f"{store.uri_of(key)}: has other bytes than were written"


def _check_rows(store: Store, plan: Plan, number: int) -> str | None:
    read_shard_rows(store, plan, number)
    return None


def _check_buried(store: Store, key: str) -> str | None:
    """A sentence if a name still holds what was taken down."""
    if len(read_outcomes(store, key, ["image_id"]).offsets):
        return f"{store.uri_of(key)}: holds images that were forgotten"
    return None


def _check_ends(store: Store, key: str, start: bytes, end: bytes) -> str | None:
    content = store.read(key)
    if content.startswith(start) and content.rstrip().endswith(end):
        return None
    return f"{store.uri_of(key)}: is not whole"


def _check_counts(run: Run, summary: Summary, shards: list[ImageCounts]) -> str | None:
    """Compare the summary with the manifests, if all were read."""
    if len(shards) != len(run.plan.shards):
        return None
    counts = sum(shards, ImageCounts())
    counted = (
        dict(counts.statuses),
        {gate: counts.marks[gate] for gate in run.plan.job.marking_gates},
        counts.bytes,
        counts.permanent_failures,
    )
    stored = (
        summary.statuses,
        summary.marks,
        summary.bytes,
        summary.permanent_failures,
    )
    if counted == stored:
        return None
    where = run.store.uri_of(commit_key(run.head.number))
    return f"{where}: counts other images than the manifest"


def _check_shard(
    run: Run, counts: list[ImageCounts], budget: ByteBudget, number: int
) -> CheckResult:
    """The manifest of one shard, the parts that it names, and the input images of its rows."""
    try:
        planned_parts = read_shard(run.store, run.plan, number)
        manifest = read_shard_manifest(run, number)
        names = manifest["part"].drop_null().unique().to_pylist()
        parts = [part for _, part in iter_named_parts(run, names)]
    except BadInput as error:
        images = run.plan.shards[number].images
        return check_failure(error, images)

    counts.append(count_images(manifest))
    planned = pa.concat_tables([part.rows for part in planned_parts])
    input_errors = input_image_errors(run.store, planned)
    checked = _count_ok(manifest)
    checked += sum(map(check_failure, input_errors), CheckResult())
    checked += _check_parts(run, parts, budget)
    checked += run_check(lambda: _check_manifest(run, number, planned, manifest, parts))
    return checked


def _count_ok(manifest: pa.Table) -> CheckResult:
    is_ok = pc.equal(manifest["status"], "ok")
    ok_rows = manifest.filter(is_ok)
    total_bytes = pc.sum(ok_rows["byte_size"]).as_py()
    return CheckResult(
        images=manifest.num_rows,
        ok=ok_rows.num_rows,
        bytes=total_bytes or 0,
    )


def _check_parts(run: Run, parts: Iterable[Part], budget: ByteBudget) -> CheckResult:
    """The errors of parts. Their images are not counted: a retry may replace them."""
    errors = CheckResult()
    for part in parts:
        # An encoded image is no larger than its pixels, but for a few bytes.
        pixels = pc.sum(pc.multiply(part.rows["width"], part.rows["height"])).as_py()
        with budget.reserve(BYTES_PER_PIXEL * pixels):
            checked = check_part_images(run.store, part, run.plan.job.encoding)
        if checked.error_count:
            errors += CheckResult(
                errors=checked.errors,
                error_count=checked.error_count,
                commands=_repair(run, part.key),
            )
    return errors


def _repair(run: Run, key: str) -> tuple[str, ...]:
    """The command that makes a lost part again, unless images were taken from it."""
    location = parse_part_key(key)
    if location is None or planned_part_key(key) != key:
        return ()
    retry, shard = location
    uri = retry_address(run.store.uri, retry) if retry else run.store.uri
    return (format_command("generate", uri, f"--shard {shard}"),)


def _check_manifest(
    run: Run, number: int, planned: pa.Table, manifest: pa.Table, parts: Iterable[Part]
) -> str | None:
    """Compare the manifest of a shard with its planned rows and the parts that it names."""
    where = run.store.uri_of(run.head.commit.manifests[number])
    origin = [name for name in planned.column_names if name != "created_at"]  # a retry has its own
    if not have_same_rows(manifest.select(origin), planned.select(origin)):
        return f"{where}: has other rows than were planned"

    named = _named_outcomes(run, manifest)
    tables = [_outcomes_of(run.store, part) for part in parts]
    stored = pa.concat_tables([named.slice(0, 0), *tables])
    places = pc.index_in(_place_of(named), _place_of(stored))
    if places.null_count or not have_same_rows(named, stored.take(places)):
        return f"{where}: differs from the parts"

    is_image = pc.equal(stored["status"], "ok")
    image_ids = manifest["image_id"].combine_chunks()
    is_of_shard = pc.is_in(stored["image_id"], image_ids)
    images = stored.filter(pc.and_(is_image, is_of_shard))
    unnamed = pc.index_in(_place_of(images), _place_of(named)).null_count
    if unnamed:
        return f"{where}: lacks images that the parts have"
    return None


def _named_outcomes(run: Run, manifest: pa.Table) -> pa.Table:
    """The columns of a manifest that parts have, too, without images that are in none."""
    names = [
        "image_id",
        *OUTCOME_SCHEMA.names,
        *(field.name for field in added_fields(run.plan.job)),
        *LOCATION_SCHEMA.names,
    ]
    is_in_part = pc.is_valid(manifest["part"])
    outcomes = without_near_duplicates(manifest).select(names)
    return outcomes.filter(is_in_part)


def _place_of(table: pa.Table) -> pa.Array:
    """The part and the image of each row, which no two rows share."""
    both = pc.binary_join_element_wise(table["part"], table["image_id"], "/")
    return both.combine_chunks()


def _outcomes_of(store: Store, part: Part) -> pa.Table:
    columns = ["image_id", *OUTCOME_SCHEMA.names]
    outcomes = read_outcomes(store, part.key, columns, part.added)
    images = len(outcomes.offsets)
    keys = pa.repeat(pa.scalar(part.key), images)
    table = outcomes.table.append_column("part", keys)
    return table.append_column("byte_offset", outcomes.offsets)


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
