"""Verification of a whole run, by hash, against its plan and its highest commit.

Images, input images, shards, manifests and lists are compared with their hashes, manifest rows with
their parts, and the commit's counts with the manifests. Report and card, attempts, times and costs
are not checked, since `aggregate` writes them again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.image_counts import count_values
from imagekiln.steps.aggregate.near_duplicates import without_near_duplicates
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, Incomplete, StorageRefused, TryAgain
from imagekiln.steps.imaging.codecs import decode_image, hash_pixels
from imagekiln.steps.job.output import is_lossless
from imagekiln.steps.runs.commits import digest_of, is_highest
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS
from imagekiln.steps.runs.keys import (
    DIGEST_DIGITS,
    commit_key,
    duplicates_key,
    input_image_digests,
    input_image_key,
    parse_part_key,
    planned_part_key,
    rejected_key,
)
from imagekiln.steps.runs.parts import Part, matches_rows, read_outcomes, read_part
from imagekiln.steps.runs.run import (
    Run,
    iter_named_parts,
    open_run,
    read_shard_manifest,
    retry_address,
)
from imagekiln.steps.runs.shard import planned_shard_key, read_shard, read_shard_rows
from imagekiln.steps.runs.tables import (
    IMAGE_FIELD,
    OUTCOME_SCHEMA,
    have_same_rows,
    parse_parquet,
)
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.failures import error_reason
from imagekiln.steps.storage.store import Store

READERS = 4  # each holds a part in memory
BATCH_ROWS = 4  # images whose bytes are in memory, besides their part
MAX_ERRORS = 10
MAX_COMMANDS = 3
IMAGE_COLUMNS = (
    IMAGE_FIELD.name,
    "image_id",
    "width",
    "height",
    "status",
    "byte_size",
    "sha256",
    "pixels_sha256",
)
Statuses = Counter[str]
Check = Callable[[], None]  # raises BadInput
Damage = Mapping[str, str]  # the key of an object, and what is wrong with it


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Verified counts of a run: planned images, also by status, stored images, and their bytes."""

    run: str
    images: int
    ok: int
    bytes: int
    statuses: Mapping[str, int]


def verify(uri: str) -> VerifyResult:
    """Read and check every object of the run at `uri` that its highest commit names.

    Raises Incomplete with a list if anything is missing or differs, TryAgain if another process
    changed the run meanwhile.
    """
    run = open_run(uri)
    if not run.is_finished:
        raise Incomplete(f"{run.store.uri}: is not finished. Run or aggregate it first.")
    summary = load_summary(run.store)
    damage = _find_damage_of_run(run, summary)
    if damage:
        if not is_highest(run.store, run.head):
            raise TryAgain(
                f"{run.store.uri}: another process changed it while it was read. Run the command "
                "again once it has ended."
            )
        raise Incomplete(*_describe_damage(run, damage))
    return VerifyResult(
        run=run.store.uri,
        images=summary.images,
        ok=summary.ok,
        bytes=summary.bytes,
        statuses=summary.statuses,
    )


def _describe_damage(run: Run, damage: Damage) -> Iterator[str]:
    """Yield sentences about the first damaged objects, and how to repair them."""
    uri = run.store.uri
    yield from list(damage.values())[:MAX_ERRORS]
    if len(damage) > MAX_ERRORS:
        yield f"And {len(damage) - MAX_ERRORS} more."
    advice = (
        "Restore these objects from a copy of the bucket. "
        f"`{format_command('forget', uri)}` with the same ids removes forgotten images. "
    )
    parts = filter(None, (_repair(run, key) for key in damage))
    commands = list(dict.fromkeys(parts))[:MAX_COMMANDS]
    if not commands:
        yield f"{advice}Images that are lost for good are made by a new run of the same rows."
        return
    commands.append(format_command("verify", uri))
    yield (
        f"{advice}Or generate parts again, as the same device gives the same bytes: "
        f"first remove those that are damaged, then type: {' && '.join(commands)}"
    )


def _repair(run: Run, key: str) -> str | None:
    """Return the command that makes a lost part again; None if images were removed from it."""
    location = parse_part_key(key)
    if location is None or planned_part_key(key) != key or key in run.head.commit.buried:
        return None
    retry, shard = location
    uri = retry_address(run.store.uri, retry) if retry else run.store.uri
    return format_command("generate", uri, f"--shard {shard}")


def _find_damage(checks: Mapping[str, Check]) -> Damage:
    """Run the checks. Raises StorageRefused, since an object that cannot be read may be intact."""
    damage = {}
    for key, check in checks.items():
        try:
            check()
        except StorageRefused:
            raise
        except BadInput as error:
            damage[key] = str(error)
    return damage


def _find_damage_of_run(run: Run, summary: Summary) -> Damage:
    shards = len(run.plan.shards)
    statuses: list[Statuses] = []
    others = list(_checks(run))

    def check(index: int) -> Damage:
        if index < shards:
            return _check_shard(run, statuses, index)
        return _find_damage(dict([others[index - shards]]))

    damage: dict[str, str] = {}
    for found in map_ordered(check, shards + len(others), READERS):
        damage |= found
    counted = sum(statuses, Statuses())
    if len(statuses) == shards and counted != summary.statuses:
        key = commit_key(run.head.number)
        where = run.store.uri_of(key)
        damage[key] = f"{where}: counts other images than the manifest."
    return damage


def _checks(run: Run) -> Iterator[tuple[str, Check]]:
    """Yield the checks of all objects, except the plan's shards and their parts, by key."""
    store = run.store
    commit = run.head.commit
    lists = [
        rejected_key(run.plan.rejected),
        duplicates_key(run.plan.duplicates),
        commit.forgotten,
    ]
    for key in (*filter(None, lists), *commit.manifests):
        yield key, partial(_check_digest, store, key)
    for plan in run.retry_plans:
        for shard in range(len(plan.shards)):
            key = planned_shard_key(plan, shard)
            yield key, partial(read_shard_rows, store, plan, shard)
    for key in commit.buried:
        yield key, partial(_check_buried, store, key)


def _check_digest(store: Store, key: str) -> None:
    """Compare an object with the digest in its name."""
    digest = digest_of(store.read(key))
    if digest[:DIGEST_DIGITS] not in key:
        raise BadInput(f"{store.uri_of(key)}: has other bytes than were written.")


def _check_buried(store: Store, key: str) -> None:
    if len(read_outcomes(store, key, ["image_id"]).offsets):
        raise BadInput(f"{store.uri_of(key)}: holds images that were forgotten.")


def _check_shard(run: Run, statuses: list[Statuses], number: int) -> Damage:
    """Check the manifest of one shard, its parts, and the input images of its rows."""
    manifest_key = run.head.commit.manifests[number]
    checks: dict[str, Check] = {}
    check_manifest = partial(_check_manifest, run, number, statuses, checks)
    damage = _find_damage({manifest_key: check_manifest})
    return {**damage, **_find_damage(checks)}


def _check_manifest(
    run: Run, number: int, statuses: list[Statuses], checks: dict[str, Check]
) -> None:
    """Compare a manifest with its planned rows.

    Add its statuses, and checks of the objects it names.
    """
    parts = read_shard(run.store, run.plan, number)
    planned = pa.concat_tables([part.rows for part in parts])
    manifest = read_shard_manifest(run, number)
    # Images of a retry have its `created_at`.
    origin = [name for name in planned.column_names if name != "created_at"]
    rows = manifest.select(origin)
    planned_rows = planned.select(origin)
    if not have_same_rows(rows, planned_rows):
        where = run.store.uri_of(run.head.commit.manifests[number])
        raise BadInput(f"{where}: has other rows than were planned.")

    named = manifest["part"].drop_null()
    names = named.unique().to_pylist()
    for part in iter_named_parts(run, names):
        checks[part.key] = partial(_check_part, run, part, manifest)
    for key in _input_image_keys(planned):
        checks[key] = partial(_check_input_image, run.store, key)
    counts = count_values(manifest["status"])
    statuses.append(counts)


def _input_image_keys(rows: pa.Table) -> list[str]:
    digests: set[str] = set()
    for name in INPUT_IMAGE_COLUMNS:
        if name in rows.column_names:
            for cell in rows[name].unique().to_pylist():
                digests.update(input_image_digests(cell))
    return list(map(input_image_key, sorted(digests)))


def _check_input_image(store: Store, key: str) -> None:
    digest = digest_of(store.read(key))
    if input_image_key(digest) != key:
        raise BadInput(f"{store.uri_of(key)}: has other bytes than were planned.")


def _check_part(run: Run, part: Part, manifest: pa.Table) -> None:
    """Read a whole part, decode its images, and compare its rows with the manifest."""
    store = run.store
    where = store.uri_of(part.key)
    content = store.read(part.key)
    with parse_parquet(content, where) as parquet:
        if not matches_rows(parquet, part):
            raise BadInput(f"{where}: holds other images than were planned.")
        added = [field.name for field in part.added]
        columns = ["image_id", *OUTCOME_SCHEMA.names, *added]
        outcomes = read_part(parquet, columns, part.added)
        batches = parquet.iter_batches(
            BATCH_ROWS,
            columns=IMAGE_COLUMNS,
            use_threads=False,
        )
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        offsets = outcomes.offsets.drop_null()
        for row, offset in zip(rows, offsets.to_pylist(), strict=True):
            end = offset + (row["byte_size"] or 0)
            name = f"{where}: image {row['image_id']}"
            _check_image(run, name, row, content[offset:end])

    stored = outcomes.table.append_column("byte_offset", outcomes.offsets)
    if not _agrees_with_manifest(part.key, stored, manifest):
        raise BadInput(f"{where}: differs from the manifest.")


def _agrees_with_manifest(key: str, stored: pa.Table, manifest: pa.Table) -> bool:
    """Return whether a manifest has the same rows of its shard as a part."""
    is_in_part = pc.equal(manifest["part"], key)
    named = without_near_duplicates(manifest).filter(is_in_part)
    # A later retry may have made images that failed here. A retry's part may span several shards.
    named_ids = named["image_id"].combine_chunks()
    is_named = pc.is_in(stored["image_id"], named_ids)
    shard_ids = manifest["image_id"].combine_chunks()
    is_of_shard = pc.is_in(stored["image_id"], shard_ids)
    is_ok = pc.equal(stored["status"], "ok")
    is_image = pc.and_(is_of_shard, is_ok)
    is_counted = pc.or_(is_named, is_image)
    counted = stored.filter(is_counted)
    named_rows = named.select(stored.column_names)
    return have_same_rows(named_rows, counted)


def _check_image(run: Run, where: str, row: Mapping[str, Any], content: bytes) -> None:
    """Compare an image with its row, and with the bytes at the offset in the manifest."""
    stored = row[IMAGE_FIELD.name]["bytes"]
    if row["status"] != "ok" or stored != content:
        raise BadInput(f"{where} is not where the footer says.")
    if digest_of(content) != row["sha256"]:
        raise BadInput(f"{where} has other bytes than were written.")
    try:
        rgb = decode_image(content, (row["width"], row["height"]))
    except (OSError, ValueError) as error:
        raise BadInput(f"{where} does not decode ({error_reason(error)}).") from error
    lossless = is_lossless(run.plan.job.encoding)
    if lossless and hash_pixels(rgb) != row["pixels_sha256"]:
        raise BadInput(f"{where} has other pixels than were generated.")
