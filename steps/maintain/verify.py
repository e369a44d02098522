"""Reads a whole run back and checks it against the plan and its highest commit, by hash.

Images, input images, shards, manifests and lists are compared with their hashes; each row of the
manifest with the part that it names; and the counts in the commit with the manifests. Attempts,
times, costs and thumbnails are not looked at. Report and card are only checked for being whole.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_counts import ImageCounts, count_images
from imagekiln.steps.aggregate.near_duplicates import without_near_duplicates
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, Incomplete, Missing, StorageRefused, TryAgain
from imagekiln.steps.imaging.codecs import decode_image, hash_pixels
from imagekiln.steps.job.output import is_lossless
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
from imagekiln.steps.runs.parts import Part, matches_rows, read_outcomes, read_part
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.run import (
    Run,
    iter_named_parts,
    open_run,
    read_shard_manifest,
    retry_address,
)
from imagekiln.steps.runs.shard import read_shard, read_shard_rows
from imagekiln.steps.runs.tables import (
    IMAGE_FIELD,
    LOCATION_SCHEMA,
    OUTCOME_SCHEMA,
    added_fields,
    have_same_rows,
    parse_parquet,
)
from imagekiln.steps.runtime.concurrency import ByteBudget, map_ordered
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.failures import error_reason
from imagekiln.steps.storage.store import Store

MAX_BYTES_IN_FLIGHT = 2**30  # of the parts read at a time, however many readers there are
BYTES_PER_PIXEL = 3
BATCH_ROWS = 4  # images whose bytes are in memory beside those of their part
MAX_ERRORS = 10
MAX_COMMANDS = 3
RECORD_COLUMNS = (
    "image_id",
    "width",
    "height",
    "status",
    "byte_size",
    "sha256",
    "pixels_sha256",
)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """A whole run: its planned images, also by status, the stored ones, and their bytes."""

    run: str
    images: int
    ok: int
    bytes: int
    statuses: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Damage:
    """The first sentences about what is wrong, their number, and commands that make it again."""

    errors: tuple[str, ...] = ()
    count: int = 0
    commands: tuple[str, ...] = ()

    def __add__(self, other: "_Damage") -> "_Damage":
        commands = dict.fromkeys(self.commands + other.commands)
        return _Damage(
            (self.errors + other.errors)[:MAX_ERRORS],
            self.count + other.count,
            tuple(commands)[:MAX_COMMANDS],
        )


def verify(uri: str, max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT) -> VerifyResult:
    """Read every object of the run at `uri` that its highest commit names.

    Raises Incomplete with a list if anything is missing or differs, TryAgain if another process
    changed the run meanwhile.
    """
    run = open_run(uri)
    if not run.is_finished:
        raise Incomplete(f"{run.store.uri}: is not finished. Run or aggregate it first.")
    summary = load_summary(run.store)
    damage = _check_run(run, summary, ByteBudget(max_bytes_in_flight))
    if not damage.count:
        return VerifyResult(
            run=run.store.uri,
            images=summary.images,
            ok=summary.ok,
            bytes=summary.bytes,
            statuses=summary.statuses,
        )
    if not is_highest(run.store, run.head):
        raise TryAgain(
            f"{run.store.uri}: another process changed it while it was read. Run the command "
            "again once it has ended."
        )
    unlisted = damage.count - len(damage.errors)
    more = [f"And {unlisted} more."] if unlisted else []
    raise Incomplete(*damage.errors, *more, _advise(run, damage))


def _advise(run: Run, damage: _Damage) -> str:
    uri = run.store.uri
    advice = (
        "Restore these objects from a copy of the bucket. "
        f"`{format_command('aggregate', uri)}` writes report and card again, and "
        f"`{format_command('forget', uri)}` with the same ids removes forgotten images. "
    )
    if not damage.commands:
        return f"{advice}Images that are lost for good are made by a new run of the same rows."
    commands = [*damage.commands, format_command("verify", uri)]
    return (
        f"{advice}Or generate parts again, as the same device gives the same bytes: "
        f"first remove those that are damaged, then type: {' && '.join(commands)}"
    )


def _collect(errors: Iterable[str]) -> _Damage:
    """The damage that these sentences tell, or the BadInput that ends them."""
    found = _Damage()
    try:
        for error in errors:
            found += _Damage((f"{error}.",), 1)
    except BadInput as error:
        found += _damage_of(error)
    return found


def _damage_of(error: BadInput) -> _Damage:
    """The damage that an error tells. Raises StorageRefused: what cannot be read may be right."""
    if isinstance(error, StorageRefused):
        raise error
    return _Damage((str(error),), 1)


def _check_run(run: Run, summary: Summary, budget: ByteBudget) -> _Damage:
    counts: list[ImageCounts] = []
    check_shard = partial(_check_shard, run, counts, budget)
    shards = map_ordered(check_shard, len(run.plan.shards))
    found = sum(shards, _Damage())
    checks = [*_checks(run), _check_counts(run, summary, counts)]
    others = map_ordered(lambda place: _collect(checks[place]), len(checks))
    return sum(others, found)


def _checks(run: Run) -> Iterator[Iterator[str]]:
    """The checks of all objects but the plan's shards and their parts."""
    store = run.store
    commit = run.head.commit
    keys = [
        rejected_key(run.plan.rejected),
        duplicates_key(run.plan.duplicates),
        *commit.manifests,
    ]
    if commit.forgotten is not None:
        keys.append(commit.forgotten)
    for key in keys:
        yield _check_digest(store, key)
    for plan in run.retry_plans:
        for shard in range(len(plan.shards)):
            yield _check_rows(store, plan, shard)
    for key in commit.buried:
        yield _check_buried(store, key)
    yield _check_ends(store, CARD_KEY, b"---\n", b"")
    yield _check_ends(store, REPORT_KEY, b"", b"</html>")


def _check_digest(store: Store, key: str) -> Iterator[str]:
    """Compare an object with the digest in its name."""
    if digest_of(store.read(key))[:DIGEST_DIGITS] not in key:
        yield f"{store.uri_of(key)}: has other bytes than were written"


def _check_rows(store: Store, plan: Plan, number: int) -> Iterator[str]:
    read_shard_rows(store, plan, number)
    yield from ()


def _check_buried(store: Store, key: str) -> Iterator[str]:
    if len(read_outcomes(store, key, ["image_id"]).offsets):
        yield f"{store.uri_of(key)}: holds images that were forgotten"


def _check_ends(store: Store, key: str, start: bytes, end: bytes) -> Iterator[str]:
    content = store.read(key)
    if not (content.startswith(start) and content.rstrip().endswith(end)):
        yield f"{store.uri_of(key)}: is not whole"


def _check_counts(run: Run, summary: Summary, shards: list[ImageCounts]) -> Iterator[str]:
    """Compare the summary with the manifests, if all were read."""
    if len(shards) != len(run.plan.shards):
        return
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
    if counted != stored:
        where = run.store.uri_of(commit_key(run.head.number))
        yield f"{where}: counts other images than the manifest"


def _check_shard(run: Run, counts: list[ImageCounts], budget: ByteBudget, number: int) -> _Damage:
    """The manifest of one shard, the parts that it names, and the input images of its rows."""
    try:
        planned_parts = read_shard(run.store, run.plan, number)
        manifest = read_shard_manifest(run, number)
        names = manifest["part"].drop_null().unique().to_pylist()
        parts = list(iter_named_parts(run, names))
    except BadInput as error:
        return _damage_of(error)

    counts.append(count_images(manifest))
    planned = pa.concat_tables([part.rows for part in planned_parts])
    input_errors = _check_input_images(run.store, planned)
    found = _collect(input_errors)
    for part in parts:
        found += _check_part(run, part, budget)
    manifest_errors = _check_manifest(run, number, planned, manifest, parts)
    return found + _collect(manifest_errors)


def _check_part(run: Run, part: Part, budget: ByteBudget) -> _Damage:
    # An encoded image is no larger than its pixels, but for a few bytes.
    pixels = pc.sum(pc.multiply(part.rows["width"], part.rows["height"])).as_py()
    with budget.reserve(BYTES_PER_PIXEL * pixels):
        lossless = is_lossless(run.plan.job.encoding)
        errors = _check_images(run.store, part, lossless=lossless)
        found = _collect(errors)
    if not found.count:
        return found
    commands = _repair(run, part.key)
    return found + _Damage(commands=commands)


def _check_images(store: Store, part: Part, *, lossless: bool) -> Iterator[str]:
    """Read the whole part, and decode each of its images."""
    where = store.uri_of(part.key)
    content = store.read(part.key)
    with parse_parquet(content, where) as parquet:
        if not matches_rows(parquet, part):
            yield f"{where}: holds other images than were planned"
            return
        offsets = read_part(parquet, ["image_id"]).offsets.drop_null()
        batches = parquet.iter_batches(
            BATCH_ROWS,
            columns=[IMAGE_FIELD.name, *RECORD_COLUMNS],
            use_threads=False,
        )
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        for row, offset in zip(rows, offsets.to_pylist(), strict=True):
            end = offset + (row["byte_size"] or 0)
            error = _image_error(row, content[offset:end], lossless=lossless)
            if error is not None:
                yield f"{where}: image {row['image_id']} {error}"


def _image_error(row: Mapping[str, Any], content: bytes, *, lossless: bool) -> str | None:
    """Compare an image with its row, and with the bytes at the offset that manifests name."""
    if row["status"] != "ok" or row[IMAGE_FIELD.name]["bytes"] != content:
        return "is not where the footer says"
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        return "has other bytes than were written"
    try:
        rgb = decode_image(content, (row["width"], row["height"]))
    except (OSError, ValueError) as error:
        return f"does not decode ({error_reason(error)})"
    if lossless and hash_pixels(rgb) != row["pixels_sha256"]:
        return "has other pixels than were drawn"
    return None


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
) -> Iterator[str]:
    """Compare the manifest of a shard with its planned rows and the parts that it names."""
    where = run.store.uri_of(run.head.commit.manifests[number])
    origin = [name for name in planned.column_names if name != "created_at"]  # a retry has its own
    if not have_same_rows(manifest.select(origin), planned.select(origin)):
        yield f"{where}: has other rows than were planned"
        return

    named = _named_outcomes(run, manifest)
    no_rows = named.slice(0, 0)
    tables = [_outcomes_of(run.store, part) for part in parts]
    stored = pa.concat_tables([no_rows, *tables])
    named_places = _place_of(named)
    places = pc.index_in(named_places, _place_of(stored))
    if places.null_count or not have_same_rows(named, stored.take(places)):
        yield f"{where}: differs from the parts"
        return

    is_image = pc.equal(stored["status"], "ok")
    image_ids = manifest["image_id"].combine_chunks()
    is_of_shard = pc.is_in(stored["image_id"], image_ids)
    is_counted = pc.and_(is_image, is_of_shard)
    images = stored.filter(is_counted)
    found = pc.index_in(_place_of(images), named_places)
    if found.null_count:
        yield f"{where}: lacks images that the parts have"


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


def _check_input_images(store: Store, rows: pa.Table) -> Iterator[str]:
    names = [name for name in INPUT_IMAGE_COLUMNS if name in rows.column_names]
    digests = {digest for name in names for digest in rows[name].unique().to_pylist()}
    for digest in sorted(digests - {None}):
        key = input_image_key(digest)
        try:
            content = store.read(key)
        except Missing:
            yield f"{store.uri_of(key)}: is missing"
            continue
        if hashlib.sha256(content).hexdigest() != digest:
            yield f"{store.uri_of(key)}: has other bytes than were planned"
