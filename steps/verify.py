"""Reads a whole run back and checks it against the plan and the manifest, by hash."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from imagekiln.steps import names, parts, plan, shard, tables
from imagekiln.steps.aggregate import in_order
from imagekiln.steps.encode import decode, pixels_hash
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import reconcile
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store, open_store

LISTED = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read back: images with good bytes, and how many bytes."""

    run: str
    images: int
    ok: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Checked:
    images: int
    ok: int
    bytes: int
    wrong: tuple[str, ...]


def verify(uri: str) -> Verified:
    """Read every object of the run at `uri`. Raises Incomplete with a list where anything is missing or differs."""
    store = open_store(uri)
    frozen = plan.load(store)
    if not store.exists(names.SUCCESS):
        raise Incomplete(f"{store.uri}: has no {names.SUCCESS}, so it is not finished. Run or aggregate it first.")
    checked = list(in_order(lambda number: _check(store, frozen, number), len(frozen.shards)))
    wrong = [sentence for each in checked for sentence in each.wrong]
    if wrong:
        more = f" and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        raise Incomplete(f"{store.uri}: {'; '.join(wrong[:LISTED])}{more}. Restore these objects, or make them again.")
    return Verified(
        store.uri,
        sum(each.images for each in checked),
        sum(each.ok for each in checked),
        sum(each.bytes for each in checked),
    )


def _check(store: Store, frozen: Plan, number: int) -> _Checked:
    try:
        wanted = shard.read(store, frozen, number)
    except BadInput as error:
        return _Checked(0, 0, 0, (_said(error),))
    each = [_check_part(store, part) for part in wanted]
    wrong = [*_check_manifest(store, frozen, number), *(sentence for part in each for sentence in part.wrong)]
    return _Checked(shard.images(wanted), sum(part.ok for part in each), sum(part.bytes for part in each), tuple(wrong))


def _check_manifest(store: Store, frozen: Plan, number: int) -> Iterator[str]:
    key = names.manifest(number)
    try:
        if not tables.read(store, key).equals(reconcile(store, frozen, number).manifest):
            yield f"{store.at(key)}: differs from the parts"
    except BadInput as error:
        yield _said(error)


def _check_part(store: Store, part: Part) -> _Checked:
    where, images = store.at(part.key), part.rows.num_rows
    try:
        content = store.read(part.key)
        table = tables.from_parquet(content, where)
        offsets = parts.offsets(content, where)
    except BadInput as error:
        return _Checked(images, 0, 0, (_said(error),))
    if len(offsets) != images or not _is_of(table, part.rows):
        return _Checked(images, 0, 0, (f"{where}: holds other images than were planned",))
    rows = zip(table.to_pylist(), offsets.to_pylist(), strict=True)
    found = [(row, _problem(row, content, offset)) for row, offset in rows if row["status"] == "ok"]
    sizes = [row["size"] for row, problem in found if problem is None]
    wrong = tuple(f"{where}: image {row['image_id']} {problem}" for row, problem in found if problem is not None)
    return _Checked(images, len(sizes), sum(sizes), wrong)


def _is_of(table: pa.Table, rows: pa.Table) -> bool:
    """Whether a part's table says of its images what the plan says of these rows."""
    same_columns = table.column_names == [tables.IMAGE.name, *rows.column_names, *tables.OUTCOME.names]
    return bool(same_columns and table.select(rows.column_names).equals(rows))


def _said(error: BadInput) -> str:
    return str(error).rstrip(".")


def _problem(row: dict[str, object], part: bytes, offset: int | None) -> str | None:
    image, size = row["image"], row["size"]
    content = image["bytes"] if isinstance(image, dict) else b""
    if offset is None or not isinstance(size, int) or content != part[offset : offset + size]:
        return "is not where the footer says"
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        return "has other bytes than were written"
    try:
        rgb = decode(content)
    except (OSError, ValueError) as error:
        return f"does not decode ({error})"
    if pixels_hash(rgb) != row["pixels_sha256"]:
        return "has other pixels than were drawn"
    return None if rgb.shape[:2] == (row["height"], row["width"]) else "has another size than was planned"
